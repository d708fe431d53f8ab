// A library between the program and those it searches, as OpenMP's tools and cuDNN are.
#pragma once

extern "C" long middle_labs(long value);         // by the next library's labs
extern "C" void* middle_next(const char* name);  // dlsym(RTLD_NEXT, name)
