// The kernels that the fake driver knows, whatever module is loaded.
//
// FAKECUDA_KERNELS names a text file with one kernel per line, columns separated by spaces, # for comments:
//   name  registers/thread  static shared memory (B)  duration (ns)  compute (permille)  bandwidth (permille)
// The name "*" stands for every kernel that has no line of its own. Without the variable there is only
//   *  32  0  10000  500  500
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/kernel/fakecuda/gpu/state.hpp"

namespace fakecuda {

struct KernelSpec {
    std::string name;
    int registers;
    int static_shared_bytes;
    gpu::Work work;
};

class KernelTable {
   public:
    // Throws std::runtime_error naming the file and the line that is wrong.
    static KernelTable from_environment();

    // The kernel of this name, or nullptr. Lives as long as the table.
    const KernelSpec* find(const std::string& name);

    // The kernels that have a line of their own, by name.
    std::vector<const KernelSpec*> listed() const;

   private:
    void read(const std::string& path);

    std::map<std::string, KernelSpec> rows_;
    std::map<std::string, KernelSpec> from_star_;
};

}  // namespace fakecuda
