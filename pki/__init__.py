"""Who is who: the federation's authority, its register of sites, and every kind of key."""
