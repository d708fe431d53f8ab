// What stands behind the driver's opaque handles.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/kernel/fakecuda/cuda_api.hpp"
#include "tests/kernel/fakecuda/gpu/virtual_gpu.hpp"
#include "tests/kernel/fakecuda/kernel_table.hpp"

namespace fakecuda {

struct Device {
    CUdevice ordinal;
    CUuuid uuid;
    std::unique_ptr<gpu::VirtualGpu> gpu;  // none in instant mode: a launch is counted, and is over at once
    CUcontext primary{nullptr};
    unsigned primary_users{0};
};

struct Dim {
    unsigned x{1};
    unsigned y{1};
    unsigned z{1};
};

struct LaunchShape {
    Dim grid;
    Dim block;
    unsigned dynamic_shared_bytes{0};
    bool cooperative{false};
};

// CUfunction and CUkernel point to different things, which launches accept alike: the runtime of CUDA 12 and
// later passes a CUkernel cast to CUfunction. The first word tells which one it is.
enum class HandleKind : std::uint64_t { kFunction = 0x66756e63, kKernel = 0x6b65726e };

struct Launchable {
    HandleKind kind;
    const KernelSpec* spec;
};

struct Capture;  // capture.hpp

}  // namespace fakecuda

struct CUstream_st {
    CUcontext context;
    std::int32_t queue;     // in the virtual GPU, or kNone
    bool waits_for_legacy;  // false with CU_STREAM_NON_BLOCKING
    int priority{0};
    std::shared_ptr<fakecuda::Capture> capture;  // while it captures
    std::atomic<bool> destroyed{false};          // a use is told then, and not of the next with this handle
    bool detached{false};                        // its green context is gone
};

struct CUevent_st {
    CUcontext context;
    std::int32_t slot{fakecuda::gpu::kNone};  // in the virtual GPU
    bool recorded{false};
    std::int64_t recorded_ns{0};  // instant mode: CLOCK_MONOTONIC
    fakecuda::gpu::Dependency mark;
    std::shared_ptr<fakecuda::Capture> capture;  // if it was recorded in one
};

struct CUctx_st {
    fakecuda::Device* device;
    std::unique_ptr<CUstream_st> legacy;
    std::vector<std::unique_ptr<CUstream_st>> streams;  // per-thread ones included
    std::vector<std::unique_ptr<CUstream_st>> destroyed_streams;
    std::vector<std::unique_ptr<CUevent_st>> events;
    std::mutex mutex;  // of the lists
};

struct CUgreenCtx_st {
    CUcontext context;
};

struct CUfunc_st : fakecuda::Launchable {
    CUmodule module;
    fakecuda::Dim block{};             // cuFuncSetBlockShape
    unsigned dynamic_shared_bytes{0};  // cuFuncSetSharedSize
};

struct CUmod_st {
    std::vector<std::unique_ptr<CUfunc_st>> functions;
};

struct CUkern_st : fakecuda::Launchable {
    CUlibrary library;
};

struct CUlib_st {
    std::vector<std::unique_ptr<CUkern_st>> kernels;
    CUmod_st module;  // the library as loaded in the current context
};

struct CUmemPoolHandle_st {
    CUmemPoolProps props;
};

struct CUgraphNode_st {
    CUgraphNodeType type;
    CUDA_KERNEL_NODE_PARAMS_v2 params{};  // of a kernel node
    bool cooperative{false};              // likewise
    std::unique_ptr<CUgraph_st> child;
    const CUgraphNode_st* original{nullptr};  // in an executable graph: the node it was made from
    bool enabled{true};
    CUgraph graph{nullptr};                // where it can be destroyed
    fakecuda::gpu::MemoryAccess memory{};  // of a node of memory operations, of which there is one
    CUcontext memory_context{nullptr};     // likewise
};

// Nodes run one after the other, in the order in which they were added: a legal order of every graph whose
// edges can only point to nodes that existed before.
struct CUgraph_st {
    std::vector<std::unique_ptr<CUgraphNode_st>> nodes;
    std::set<CUgraphNode> cut_before;  // nodes that have lost an edge and got none for it yet
};

struct CUgraphExec_st {
    CUgraph_st graph;
};
