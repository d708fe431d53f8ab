/* Included before every file of the interposer: it has to load in containers, whose glibc may be older than
 * that of the machine that built it, and a missing version of a symbol ends the program. glibc 2.34 moved
 * threads and dlopen into libc.so.6 and gave them new versions; the former are still there. Weak, since in an
 * older glibc they are in libraries that only programs with threads or plugins have. */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>

#if defined(__x86_64__)
#define EXPL_FORMER "GLIBC_2.2.5"
#define EXPL_FORMER_DLINFO "GLIBC_2.3.3"
#else
#define EXPL_FORMER "GLIBC_2.17"
#define EXPL_FORMER_DLINFO "GLIBC_2.17"
#endif
#define EXPL_OLD(name, version) __asm__(".weak " #name "\n.symver " #name "," #name "@" version)
#pragma weak dlerror
#pragma weak dlinfo
#pragma weak dlopen
#pragma weak dlvsym
#pragma weak pthread_attr_setstacksize
#pragma weak pthread_create
#pragma weak pthread_sigmask
EXPL_OLD(dlerror, EXPL_FORMER);
EXPL_OLD(dlinfo, EXPL_FORMER_DLINFO);
EXPL_OLD(dlopen, EXPL_FORMER);
EXPL_OLD(dlvsym, EXPL_FORMER);
EXPL_OLD(pthread_attr_setstacksize, EXPL_FORMER);
EXPL_OLD(pthread_create, EXPL_FORMER);
EXPL_OLD(pthread_sigmask, EXPL_FORMER);
#undef EXPL_OLD
#undef EXPL_FORMER
#undef EXPL_FORMER_DLINFO
