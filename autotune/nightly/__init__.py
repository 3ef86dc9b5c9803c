"""The tuning cron of one host: verifies stored winners each night, and tunes again only what needs it."""
