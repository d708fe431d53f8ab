// Kernel launches: the driver's entry points for them, in the shape that launch.hpp takes.

#include <algorithm>
#include <array>

#include "kernel_intercept/interposer/driver.hpp"
#include "kernel_intercept/interposer/functions.hpp"
#include "kernel_intercept/interposer/launch.hpp"
#include "kernel_intercept/interposer/settings.hpp"
#include "kernel_intercept/interposer/streams.hpp"

namespace explsched::intercept {
namespace {

constexpr const char* entry_name(Symbol symbol) {
    return kSymbolNames[static_cast<std::size_t>(symbol)].data();
}

template <Symbol kSymbol>
constexpr Launch launch_through(Stream stream) {
    return {entry_name(kSymbol), stream, null_stream_of(kSymbol)};
}

template <Symbol kSymbol, typename... Arguments>
Result launch(const KernelLaunch& kernel, Arguments... arguments) {
    const auto entry = driver<kSymbol>();
    if (entry == nullptr) return kErrorSymbolNotFound;
    const Admitted admitted = admit(kernel);
    const Result result = entry(arguments...);
    launched(admitted, kernel.launch, result);
    return result;
}

constexpr unsigned kMostAttributes = 32;

// Whether the launch goes before those of default streams (0; lower numbers go first).
bool outranks_others(const LaunchConfig& config) noexcept {
    for (unsigned i = 0; config.attributes != nullptr && i < config.attribute_count; ++i) {
        const LaunchAttribute& attribute = config.attributes[i];
        if (attribute.id == kAttributePriority && attribute.value.priority < 0) return true;
    }
    return false;
}

template <Symbol kSymbol>
Result launch_ex(const LaunchConfig* config, Function function, void** params, void** extra) {
    if (config == nullptr) return call_driver<kSymbol>(config, function, params, extra);
    KernelLaunch kernel{launch_through<kSymbol>(config->stream),
                        {function,
                         {config->grid_x, config->grid_y, config->grid_z},
                         {config->block_x, config->block_y, config->block_z},
                         config->shared_bytes}};
    for (unsigned i = 0; config->attributes != nullptr && i < config->attribute_count; ++i) {
        const LaunchAttribute& attribute = config->attributes[i];
        if (attribute.id == kAttributeCooperative && attribute.value.cooperative != 0) {
            kernel.launch.patience = gate::Patience::kMustNotWait;
        }
        if ((attribute.id == kAttributeProgrammaticSerialization &&
             attribute.value.programmatic_serialization != 0) ||
            (attribute.id == kAttributeProgrammaticEvent && attribute.value.programmatic_event != nullptr)) {
            kernel.launch.timing = Timing::kForbidden;
        }
    }
    LaunchConfig last = *config;
    std::array<LaunchAttribute, kMostAttributes> attributes;
    if (outranks_others(*config) && config->attribute_count <= kMostAttributes && is_best_effort()) {
        std::copy_n(config->attributes, config->attribute_count, attributes.begin());
        for (unsigned i = 0; i < config->attribute_count; ++i) {
            if (attributes[i].id == kAttributePriority) attributes[i].value.priority = 0;
        }
        last.attributes = attributes.data();
        config = &last;
    }
    return launch<kSymbol>(kernel, config, function, params, extra);
}

KernelLaunch without_waiting(KernelLaunch kernel) {
    kernel.launch.patience = gate::Patience::kMustNotWait;
    return kernel;
}

template <Symbol kSymbol>
KernelLaunch shaped_before(Function function, int width, int height, Stream stream) noexcept {
    const BlockShape shape = block_shape(function);
    return {launch_through<kSymbol>(stream),
            {function,
             {static_cast<std::uint32_t>(width), static_cast<std::uint32_t>(height), 1},
             {shape.x, shape.y, shape.z},
             shape.shared_bytes}};
}

}  // namespace

extern "C" {

Result cuLaunchKernel(Function function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                      unsigned bz, unsigned shared, Stream stream, void** params, void** extra) {
    constexpr Symbol kSymbol = Symbol::cuLaunchKernel;
    return launch<kSymbol>({launch_through<kSymbol>(stream), {function, {gx, gy, gz}, {bx, by, bz}, shared}},
                           function, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}

Result cuLaunchKernel_ptsz(Function function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                           unsigned bz, unsigned shared, Stream stream, void** params, void** extra) {
    constexpr Symbol kSymbol = Symbol::cuLaunchKernel_ptsz;
    return launch<kSymbol>({launch_through<kSymbol>(stream), {function, {gx, gy, gz}, {bx, by, bz}, shared}},
                           function, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}

Result cuLaunchKernelEx(const LaunchConfig* config, Function function, void** params, void** extra) {
    return launch_ex<Symbol::cuLaunchKernelEx>(config, function, params, extra);
}

Result cuLaunchKernelEx_ptsz(const LaunchConfig* config, Function function, void** params, void** extra) {
    return launch_ex<Symbol::cuLaunchKernelEx_ptsz>(config, function, params, extra);
}

Result cuLaunchCooperativeKernel(Function function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                 unsigned by, unsigned bz, unsigned shared, Stream stream, void** params) {
    constexpr Symbol kSymbol = Symbol::cuLaunchCooperativeKernel;
    return launch<kSymbol>(
        without_waiting({launch_through<kSymbol>(stream), {function, {gx, gy, gz}, {bx, by, bz}, shared}}),
        function, gx, gy, gz, bx, by, bz, shared, stream, params);
}

Result cuLaunchCooperativeKernel_ptsz(Function function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                      unsigned by, unsigned bz, unsigned shared, Stream stream,
                                      void** params) {
    constexpr Symbol kSymbol = Symbol::cuLaunchCooperativeKernel_ptsz;
    return launch<kSymbol>(
        without_waiting({launch_through<kSymbol>(stream), {function, {gx, gy, gz}, {bx, by, bz}, shared}}),
        function, gx, gy, gz, bx, by, bz, shared, stream, params);
}

Result cuLaunchCooperativeKernelMultiDevice(LaunchParams* list, unsigned count, unsigned flags) {
    constexpr Symbol kSymbol = Symbol::cuLaunchCooperativeKernelMultiDevice;
    for (unsigned i = 0; list != nullptr && i < count; ++i) {
        const LaunchParams& one = list[i];
        Context context = nullptr;
        const bool known = call_driver<Symbol::cuStreamGetCtx>(one.stream, &context) == kSuccess;
        charge(without_waiting({launch_through<kSymbol>(one.stream),
                                {one.function,
                                 {one.grid_x, one.grid_y, one.grid_z},
                                 {one.block_x, one.block_y, one.block_z},
                                 one.shared_bytes}}),
               known ? known_context(context) : nullptr);
    }
    return call_driver<kSymbol>(list, count, flags);
}

Result cuLaunch(Function function) {
    return launch<Symbol::cuLaunch>(shaped_before<Symbol::cuLaunch>(function, 1, 1, nullptr), function);
}

Result cuLaunchGrid(Function function, int width, int height) {
    return launch<Symbol::cuLaunchGrid>(shaped_before<Symbol::cuLaunchGrid>(function, width, height, nullptr),
                                        function, width, height);
}

Result cuLaunchGridAsync(Function function, int width, int height, Stream stream) {
    return launch<Symbol::cuLaunchGridAsync>(
        shaped_before<Symbol::cuLaunchGridAsync>(function, width, height, stream), function, width, height,
        stream);
}

Result cuFuncSetBlockShape(Function function, int x, int y, int z) {
    BlockShape shape = block_shape(function);
    shape.x = static_cast<std::uint32_t>(x);
    shape.y = static_cast<std::uint32_t>(y);
    shape.z = static_cast<std::uint32_t>(z);
    note_block_shape(function, shape);
    return call_driver<Symbol::cuFuncSetBlockShape>(function, x, y, z);
}

Result cuFuncSetSharedSize(Function function, unsigned bytes) {
    BlockShape shape = block_shape(function);
    shape.shared_bytes = bytes;
    note_block_shape(function, shape);
    return call_driver<Symbol::cuFuncSetSharedSize>(function, bytes);
}

}  // extern "C"

}  // namespace explsched::intercept
