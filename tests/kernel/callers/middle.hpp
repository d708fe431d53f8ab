// A library between the program and the driver; see by_next.cpp.
#pragma once

extern "C" {

void* middle_next(const char* symbol);  // dlsym(RTLD_NEXT, symbol), called from the library
int middle_wrapped(int value);  // the library's own wrapper around a function that the next library also has

}  // extern "C"
