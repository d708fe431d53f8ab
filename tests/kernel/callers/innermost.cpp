// The library after middle.cpp in the search order.

extern "C" int middle_wrapped(int value) { return 10 * value; }
