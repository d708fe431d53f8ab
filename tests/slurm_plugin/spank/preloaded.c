/* Stands in for the interposer. */
int spank_preloaded_is_here(void);
int spank_preloaded_is_here(void) { return 1; }
