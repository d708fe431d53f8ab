// What each memory that a manager shares begins with. Its meaning never changes.
#pragma once

#include <cstdint>

namespace explsched::shared {

constexpr std::uint32_t kPageMagic = 0x4b505845;     // "EXPK"
constexpr std::uint32_t kTableMagic = 0x54505845;    // "EXPT"
constexpr std::uint32_t kSignalsMagic = 0x53505845;  // "EXPS"
constexpr std::uint32_t kLayoutVersion = 7;          // of all that follows a header

struct Header {
    std::uint32_t magic;
    std::uint32_t layout_version;
    std::uint32_t size;   // bytes of the whole memory
    std::uint32_t slots;  // clients, or entries of the table
};
static_assert(sizeof(Header) == 16);

}  // namespace explsched::shared
