// The slots of a page as a set of bits.
#pragma once

#include <cstdint>

namespace explsched::manager {

template <typename Visit>
void each_bit(std::uint64_t mask, const Visit& visit) {
    for (; mask != 0; mask &= mask - 1) visit(static_cast<std::uint32_t>(__builtin_ctzll(mask)));
}

}  // namespace explsched::manager
