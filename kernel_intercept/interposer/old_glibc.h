/* Included before every file of the interposer: it has to load in containers, whose glibc may be older than
 * that of the machine that built it. glibc 2.34 moved threads and dlopen into libc.so.6 and gave them new
 * versions; the versions of before are still there, in libdl and libpthread then and in libc now. A missing
 * version ends the program, preloaded or not. */
#if defined(__x86_64__)
#define EXPL_OLD(name) __asm__(".symver " #name "," #name "@GLIBC_2.2.5")
__asm__(".symver dlinfo,dlinfo@GLIBC_2.3.3");
#else
#define EXPL_OLD(name) __asm__(".symver " #name "," #name "@GLIBC_2.17")
EXPL_OLD(dlinfo);
#endif
EXPL_OLD(dlerror);
EXPL_OLD(dlopen);
EXPL_OLD(dlvsym);
EXPL_OLD(pthread_attr_setstacksize);
EXPL_OLD(pthread_create);
EXPL_OLD(pthread_sigmask);
#undef EXPL_OLD
