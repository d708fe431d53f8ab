// Graphs: lists of nodes, and their frozen copies that can be launched.
#pragma once

#include <memory>

#include "tests/kernel/fakecuda/objects.hpp"

namespace fakecuda {

// False for what the double does not know.
bool as_access(const CUstreamBatchMemOpParams& operation, gpu::MemoryAccess& access);
void run(const gpu::MemoryAccess& access, CUstream stream);

// A deep copy. Each node remembers the one it was made from.
std::unique_ptr<CUgraph_st> clone(const CUgraph_st& graph);

// The kernel of a kernel node; nullptr for a node of another type.
const KernelSpec* kernel_of(const CUgraphNode_st& node);

}  // namespace fakecuda
