// The table under many threads: it may forget, it never mixes up.

#include "kernel_intercept/interposer/handle_table.hpp"

#include <thread>
#include <vector>

#include "tests/kernel/interposer/check.hpp"

namespace {

struct Value {
    std::uint64_t a, b, c;
};

using Table = explsched::intercept::HandleTable<Value, 64>;

void test_epochs(Table& table) {
    table.put(7, 1, {1, 2, 3});
    CHECK(table.find(7, 1).has_value());
    CHECK(!table.find(7, 2).has_value());
    CHECK(!table.find(8, 1).has_value());
    table.put(7, 2, {4, 5, 6});
    CHECK_EQUAL(table.find(7, 2)->a, std::uint64_t{4});
    CHECK(!table.find(7, 1).has_value());
}

// More keys than slots, so that entries are replaced while they are read.
void test_no_mixtures(Table& table) {
    constexpr std::uint64_t kKeys = 200;
    std::vector<std::thread> threads;
    std::atomic<bool> mixed{false};
    std::atomic<std::uint64_t> found{0};
    for (std::uint64_t start = 0; start < 4; ++start) {
        threads.emplace_back([&table, &mixed, &found, start] {
            for (std::uint64_t round = 0; round < 50'000; ++round) {
                const std::uint64_t key = 1 + (round * 7 + start) % kKeys;
                if (round % 3 == 0) table.put(key, 1, {key, key * 3, round ^ key});
                const auto value = table.find(key, 1);
                if (value && (value->a != key || value->b != key * 3)) mixed = true;
                if (value) ++found;
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(!mixed);
    CHECK(found > 0);
}

}  // namespace

int main() {
    static Table table;
    test_epochs(table);
    static Table fresh;
    test_no_mixtures(fresh);
}
