"""From a site's table to records."""
