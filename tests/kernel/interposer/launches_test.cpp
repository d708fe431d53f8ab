// What the gate is told of each kind of launch. Run with the interposer of the recording gate.
//
// The virtual GPU has 132 multiprocessors; a kernel there needs 32 registers, so a multiprocessor holds 8
// blocks of 256 threads: 528 blocks take 66 of them, half of the GPU.

#include <dlfcn.h>

#include <cstdlib>

#include "tests/kernel/interposer/gate_log.hpp"
#include "tests/kernel/interposer/session.hpp"

using explsched::test::told_to_gate;

namespace {

constexpr const char* kHalf = "admit 0 20000 500 1000";
constexpr const char* kHalfCharged = "charge 0 20000 500 1000";

void launch_extended(CUfunction function, CUlaunchAttribute* attribute) {
    CUlaunchConfig config{};
    config.gridDimX = 528;
    config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = 256;
    config.blockDimY = config.blockDimZ = 1;
    config.attrs = attribute;
    config.numAttrs = attribute == nullptr ? 0 : 1;
    DO(cuLaunchKernelEx(&config, function, nullptr, nullptr));
}

void test_plain(CUmodule module) {
    const CUfunction function = explsched::test::function_of(module, "_Z4halfv");
    explsched::test::launch(function, 528, nullptr);
    CHECK_EQUAL(told_to_gate(), std::string("attach 0 cc 90 sms 132|") + kHalf);
    explsched::test::launch(function, 100'000, nullptr);
    CHECK_EQUAL(told_to_gate(), std::string("admit 0 20000 1000 1000"));
    launch_extended(function, nullptr);
    CHECK_EQUAL(told_to_gate(), std::string(kHalf));
}

void test_kernels_that_must_not_wait(CUmodule module) {
    const CUfunction function = explsched::test::function_of(module, "_Z4halfv");
    DO(cuLaunchCooperativeKernel(function, 528, 1, 1, 256, 1, 1, 0, nullptr, nullptr));
    CHECK_EQUAL(told_to_gate(), std::string(kHalfCharged));
    CUlaunchAttribute cooperative{};
    cooperative.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    cooperative.value.cooperative = 1;
    launch_extended(function, &cooperative);
    CHECK_EQUAL(told_to_gate(), std::string(kHalfCharged));
    cooperative.value.cooperative = 0;
    launch_extended(function, &cooperative);
    CHECK_EQUAL(told_to_gate(), std::string(kHalf));
    const CUfunction collective = explsched::test::function_of(module, "_Z23ncclDevKernel_AllReducev");
    explsched::test::launch(collective, 528, nullptr);
    CHECK_EQUAL(told_to_gate(), std::string(kHalfCharged));
}

// They wait for their peers on other GPUs, whoever wrote them.
void test_collectives_of_all_kinds(CUmodule module) {
    for (const char* name : {"_Z22ncclDevKernel_BroadcastP",
                             "_Z13nvshmem_put_nbiv",
                             "_ZN4vllm24cross_device_reduce_1stageEv",
                             "_Z16one_shot_allreduce",
                             "_Z20oneShotAllReduceNormv",
                             "_Z23two_shot_all_reduce_kerv",
                             "_Z9allgatherv",
                             "_Z15ncclxAllGatherv",
                             "_Z10all_gatherv",
                             "_Z13ReduceScatterv",
                             "_Z13reduceScatterv",
                             "_Z14reduce_scatterv",
                             "_Z22multimem_one_shot_sumv",
                             "_Z17moeAllToAllKernelv",
                             "_Z20moeA2ADispatchKernelv",
                             "_Z8alltoallv",
                             "_Z8AllToAllv",
                             "_Z22all_to_all_vdev_kernelv",
                             "_ZN7deep_ep9intranode8dispatchILi8ELi768EEEvv",
                             "_ZN4c10d16symmetric_memoryL14barrier_kernelEPPjiiim",
                             "_ZN12tensorrt_llm7kernels5mnnvl28oneshotAllreduceFusionKernelILh8EfEEvPT0_",
                             "_Z22twoshotAllreduceKernelv",
                             "_Z14rmsNormLamportIfEvPT_",
                             "_Z16NvlAlltoAllKernelv",
                             "_Z21kuserbuffers_pushrecviiiiPiS_imS_S_",
                             "_Z16small_all_gatherv",
                             "_Z11smAllReducev",
                             "_Z13gemmallreducev",
                             "_Z11cross_device"}) {
        explsched::test::launch(explsched::test::function_of(module, name), 528, nullptr);
        CHECK_EQUAL(std::string(name) + told_to_gate(), std::string(name) + kHalfCharged);
    }
    for (const char* name : {"_Z6reducev", "_Z6gatherv", "_Z7scatterv", "_Z14scatter_reducev",
                             "_Z12small_reducev", "_Z11smallGatherv", "_Z5small", "_Z6deep_e", "_",
                             "_Z11syncClusterv", "triton_poi_fused__assert_async_clone_0"}) {
        explsched::test::launch(explsched::test::function_of(module, name), 528, nullptr);
        CHECK_EQUAL(std::string(name) + told_to_gate(), std::string(name) + kHalf);
    }
}

using MultiDevice = CUresult(CUDA_LAUNCH_PARAMS*, unsigned, unsigned);

// Each device's part is charged where it runs; what is not known there passes.
void test_launch_on_several_devices(CUmodule module) {
    const auto launch =
        reinterpret_cast<MultiDevice*>(dlsym(RTLD_DEFAULT, "cuLaunchCooperativeKernelMultiDevice"));
    CUstream stream{};
    DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUDA_LAUNCH_PARAMS params[2]{};
    for (CUDA_LAUNCH_PARAMS& one : params) {
        one.function = explsched::test::function_of(module, "_Z4halfv");
        one.gridDimX = 528;
        one.gridDimY = one.gridDimZ = one.blockDimY = one.blockDimZ = 1;
        one.blockDimX = 256;
        one.hStream = stream;
    }
    DO(launch(params, 2, 0));
    CHECK_EQUAL(told_to_gate(), std::string(kHalfCharged) + "|" + kHalfCharged);
    DO(cuStreamDestroy(stream));
}

// As without us, wrong arguments are the driver's to refuse.
void test_missing_arguments() {
    const auto launch =
        reinterpret_cast<MultiDevice*>(dlsym(RTLD_DEFAULT, "cuLaunchCooperativeKernelMultiDevice"));
    CHECK(launch(nullptr, 2, 0) != CUDA_SUCCESS);
    CHECK(cuLaunchKernelEx(nullptr, nullptr, nullptr, nullptr) != CUDA_SUCCESS);
    CHECK_EQUAL(told_to_gate(), std::string());
}

// There are no more places for GPUs than that.
void test_gpu_beyond_all_places() {
    CUcontext before{};
    CUcontext far{};
    DO(cuCtxGetCurrent(&before));
    DO(cuCtxCreate(&far, nullptr, 0, 17));
    explsched::test::launch(explsched::test::function_of(explsched::test::load_module(), "_Z4halfv"), 528,
                            nullptr);
    CHECK_EQUAL(told_to_gate(), std::string());
    DO(cuCtxDestroy(far));
    DO(cuCtxSetCurrent(before));
}

// The runtime of CUDA 12 and later passes CUkernel handles where the type says CUfunction.
void test_kernel_handle() {
    CUlibrary library{};
    CUkernel kernel{};
    DO(cuLibraryLoadData(&library, "image", nullptr, nullptr, 0, nullptr, nullptr, 0));
    DO(cuLibraryGetKernel(&kernel, library, "_Z6handlev"));
    explsched::test::launch(reinterpret_cast<CUfunction>(kernel), 528, nullptr);
    CHECK_EQUAL(told_to_gate(), std::string(kHalf));
    DO(cuLibraryUnload(library));
}

// What was a collective's handle must not make its next owner one.
void test_handle_used_again() {
    for (int i = 0; i < 8; ++i) {
        CUmodule module = explsched::test::load_module();
        const bool collective = i % 2 == 0;
        const CUfunction function =
            explsched::test::function_of(module, collective ? "_Z10ncclKernelv" : "_Z6normalv");
        explsched::test::launch(function, 528, nullptr);
        CHECK_EQUAL(told_to_gate(), std::string(collective ? kHalfCharged : kHalf));
        DO(cuModuleUnload(module));
    }
}

// A context takes its modules with it.
void test_handle_used_again_after_its_context() {
    CUcontext before{};
    DO(cuCtxGetCurrent(&before));
    for (int i = 0; i < 8; ++i) {
        CUcontext context{};
        DO(cuCtxCreate(&context, nullptr, 0, 0));
        const bool collective = i % 2 == 0;
        const CUfunction function = explsched::test::function_of(
            explsched::test::load_module(), collective ? "_Z10ncclKernelv" : "_Z6normalv");
        explsched::test::launch(function, 528, nullptr);
        CHECK_EQUAL(told_to_gate(),
                    std::string("attach 0 cc 90 sms 132|") + (collective ? kHalfCharged : kHalf));
        DO(cuCtxDestroy(context));
    }
    DO(cuCtxSetCurrent(before));
}

// Streams of best-effort processes do not go before others'.
void test_stream_priorities(bool best_effort) {
    for (const int asked : {-3, 0}) {
        CUstream stream{};
        int priority = 1;
        DO(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, asked));
        DO(cuStreamGetPriority(stream, &priority));
        CHECK_EQUAL(priority, best_effort ? 0 : asked);
        for (const char* symbol : {"cuStreamSetAttribute", "cuStreamSetAttribute_ptsz"}) {
            const auto set = reinterpret_cast<decltype(&cuStreamSetAttribute)>(dlsym(RTLD_DEFAULT, symbol));
            CUstreamAttrValue value{};
            value.priority = asked;
            DO(set(stream, CU_STREAM_ATTRIBUTE_PRIORITY, &value));
            DO(cuStreamGetPriority(stream, &priority));
            CHECK_EQUAL(priority, best_effort ? 0 : asked);
        }
        DO(cuStreamDestroy(stream));
    }
}

// Nor do their launches, and the program's attributes are left as they were.
void test_launch_priorities(CUmodule module, bool best_effort) {
    const CUfunction function = explsched::test::function_of(module, "_Z4halfv");
    const auto seen = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "fakecuda_launch_priority"));
    CUlaunchAttribute priority{};
    priority.id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
    priority.value.priority = -4;
    launch_extended(function, &priority);
    CHECK_EQUAL(seen(), best_effort ? 0 : -4);
    CHECK_EQUAL(priority.value.priority, -4);
    told_to_gate();
}

void test_failed_calls() {
    CHECK(cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr) != CUDA_SUCCESS);
    told_to_gate();
}

void test_second_context() {
    CUcontext other{};
    DO(cuCtxCreate(&other, nullptr, 0, 0));
    CUmodule module = explsched::test::load_module();
    explsched::test::launch(explsched::test::function_of(module, "_Z4halfv"), 528, nullptr);
    CHECK_EQUAL(told_to_gate(), std::string("attach 0 cc 90 sms 132|") + kHalf);
    DO(cuCtxDestroy(other));
}

}  // namespace

int main() {
    const bool best_effort = std::getenv("GATE_BEST_EFFORT") != nullptr;
    explsched::test::open_context(0);
    unsetenv("GATE_BEST_EFFORT");  // a program that cleans its environment stays what it is
    told_to_gate();                // what an earlier run left
    CUmodule module = explsched::test::load_module();
    test_plain(module);
    test_kernels_that_must_not_wait(module);
    test_collectives_of_all_kinds(module);
    test_launch_on_several_devices(module);
    test_missing_arguments();
    test_gpu_beyond_all_places();
    test_kernel_handle();
    test_handle_used_again();
    test_handle_used_again_after_its_context();
    test_launch_priorities(module, best_effort);
    test_stream_priorities(best_effort);
    test_failed_calls();
    test_second_context();
}
