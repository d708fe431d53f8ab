#include "kernel_intercept/interposer/functions.hpp"

#include <cstring>

#include "kernel_intercept/interposer/capture.hpp"
#include "kernel_intercept/interposer/driver.hpp"
#include "kernel_intercept/interposer/epoch.hpp"
#include "kernel_intercept/interposer/handle_table.hpp"

namespace explsched::intercept {

std::atomic<std::uint32_t> g_handle_epoch{1};

namespace {

struct NotedHandle {
    const char* name;
    HandleKind kind;
};

// Notes outlive epochs: a later look-up of the same handle overwrites them, and the driver is asked first.
constexpr std::uint32_t kAlways = 1;

HandleTable<FunctionFacts, 8192> g_facts;
HandleTable<NotedHandle, 8192> g_notes;
HandleTable<BlockShape, 256> g_shapes;

// Parts of the names of kernels that wait for their peers on other GPUs: NCCL and NVSHMEM, and the custom
// collectives of vLLM, TensorRT-LLM, Transformer Engine, PyTorch's symmetric memory and DeepEP. In lower case
// and without `_`: the same ones are spelt in many ways. Not so `nccl`, which `async_clone` would hold.
constexpr const char* kCollectiveNames[] = {
    "nvshmem", "allreduce", "allgather", "reducescatter",   "alltoall",    "crossdevice", "multimem",
    "moea2a",  "deepep",    "mnnvl",     "symmetricmemory", "userbuffers", "lamport",
};

bool begins_with(const char* name, const char* part) noexcept {
    for (; *part != '\0'; ++name) {
        if (*name == '_') continue;
        if ((*name | 0x20) != *part) return false;  // in lower case, if it is a letter
        ++part;
    }
    return true;
}

bool is_collective(const char* name) noexcept {
    if (std::strstr(name, "nccl") != nullptr) return true;
    for (; *name != '\0'; ++name) {
        const bool small = std::strncmp(name, "small", 5) == 0;  // small_reduce is no all_reduce
        if (small && (begins_with(name + 5, "reduce") || begins_with(name + 5, "gather"))) name += 5;
        for (const char* part : kCollectiveNames) {
            if (begins_with(name, part)) return true;
        }
    }
    return false;
}

// A CUkernel is turned into the function of the current context first, so that one set of calls serves both.
Function as_function(Function handle, HandleKind kind) noexcept {
    Function function = nullptr;
    if (kind == HandleKind::kFunction) return handle;
    return call_driver<Symbol::cuKernelGetFunction>(&function, handle) == kSuccess ? function : nullptr;
}

bool ask_attributes(Function handle, HandleKind kind, Device device, FunctionFacts& facts) noexcept {
    const Function function = as_function(handle, kind);
    const auto ask = [&](int attribute, int& value) {
        if (function != nullptr &&
            call_driver<Symbol::cuFuncGetAttribute>(&value, attribute, function) == kSuccess) {
            return true;
        }
        return kind == HandleKind::kKernel &&
               call_driver<Symbol::cuKernelGetAttribute>(&value, attribute, handle, device) == kSuccess;
    };
    int registers = 0;
    int shared = 0;
    int threads = 0;
    if (!ask(kFunctionRegisters, registers)) return false;
    if (!ask(kFunctionSharedBytes, shared) || !ask(kFunctionMaxThreads, threads)) return false;
    facts.registers_per_thread = static_cast<std::uint16_t>(registers);
    facts.static_shared_bytes = static_cast<std::uint32_t>(shared);
    facts.max_threads_per_block = static_cast<std::uint16_t>(threads);
    return true;
}

const char* ask_name(Function handle, HandleKind kind) noexcept {
    const char* name = nullptr;
    const Result result = kind == HandleKind::kFunction ? call_driver<Symbol::cuFuncGetName>(&name, handle)
                                                        : call_driver<Symbol::cuKernelGetName>(&name, handle);
    return result == kSuccess ? name : nullptr;
}

constexpr HandleKind other(HandleKind kind) {
    return kind == HandleKind::kFunction ? HandleKind::kKernel : HandleKind::kFunction;
}

FunctionFacts ask_driver(Function handle, Device device) noexcept {
    const auto noted = g_notes.find(key_of(handle), kAlways);
    const HandleKind likely = noted ? noted->kind : HandleKind::kFunction;
    FunctionFacts facts{};
    // Handles that we did not see being looked up can be of either kind.
    if (!ask_attributes(handle, likely, device, facts)) ask_attributes(handle, other(likely), device, facts);
    const char* name = ask_name(handle, likely);
    if (name == nullptr) name = ask_name(handle, other(likely));
    if (name == nullptr) name = noted_name(handle);  // drivers before 12.3
    facts.name = kept_name(name);
    facts.collective = name != nullptr && is_collective(name);
    return facts;
}

FunctionFacts facts_without_driver(Function handle) noexcept {
    FunctionFacts facts{};
    facts.name = kept_name(noted_name(handle));
    facts.collective = is_collective(facts.name.text);
    return facts;
}

}  // namespace

FunctionFacts function_facts(Function function, Device device) noexcept {
    const std::uint32_t epoch = handle_epoch();
    if (const auto known = g_facts.find(key_of(function), epoch)) return *known;
    if (any_capture()) return facts_without_driver(function);
    const FunctionFacts facts = ask_driver(function, device);
    g_facts.put(key_of(function), epoch, facts);
    return facts;
}

void note_handle(Function handle, HandleKind kind, const char* name) noexcept {
    g_notes.put(key_of(handle), kAlways, {name == nullptr ? nullptr : kept_name(name).text, kind});
}

const char* noted_name(Function handle) noexcept {
    const auto noted = g_notes.find(key_of(handle), kAlways);
    return noted ? noted->name : nullptr;
}

BlockShape block_shape(Function function) noexcept {
    return g_shapes.find(key_of(function), handle_epoch()).value_or(BlockShape{});
}

void note_block_shape(Function function, const BlockShape& shape) noexcept {
    g_shapes.put(key_of(function), handle_epoch(), shape);
}

}  // namespace explsched::intercept
