// The hooks as a program that is linked to the driver reaches them: by their symbols.
#pragma once

#include <string>
#include <vector>

struct LinkedHook {
    std::string name;
    void* function;  // null if neither the driver nor the interposer has it
};

std::vector<LinkedHook> linked_hooks();

// What cuGetProcAddress is to answer for a name, a version and a default stream: the symbol.
struct NamedEntry {
    std::string base;
    int since;
    bool per_thread;
    std::string symbol;
};

std::vector<NamedEntry> named_entries();
