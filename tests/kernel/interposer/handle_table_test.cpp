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

void test_places_of_forgotten_keys_are_used_again(Table& table) {
    CHECK(table.put_if_room(7, 1, {1, 2, 3}));
    for (std::uint64_t key = 100; key < 10'000; ++key) {
        CHECK(table.put_if_room(key, 1, {key, key, key}));
        table.forget(key);
        CHECK(!table.find(key, 1).has_value());
    }
    CHECK_EQUAL(table.find(7, 1)->b, std::uint64_t{2});
    table.forget(0);  // a null handle
}

// A place that has become free before its own is not taken as well: an older value would come back.
void test_a_key_has_one_place(Table& table) {
    const auto add_all = [&table](std::uint64_t value) {
        std::vector<std::uint64_t> added;
        for (std::uint64_t key = 1; key < 1000; ++key) {
            if (table.put_if_room(key, 1, {value, value, value})) added.push_back(key);
        }
        return added;
    };
    const std::vector<std::uint64_t> full = add_all(1);
    for (std::size_t i = 0; i < full.size(); i += 2) table.forget(full[i]);
    for (std::size_t i = 1; i < full.size(); i += 2) CHECK(table.put_if_room(full[i], 1, {2, 2, 2}));
    for (std::size_t i = 1; i < full.size(); i += 2) table.forget(full[i]);
    for (const std::uint64_t key : full) CHECK(!table.find(key, 1).has_value());
    CHECK_EQUAL(add_all(3).size(), full.size());
}

void test_without_room_nothing_is_replaced(Table& table) {
    std::vector<std::uint64_t> kept;
    std::uint64_t refused = 0;
    for (std::uint64_t key = 1; key <= 200; ++key) {
        if (table.put_if_room(key, 1, {key, key, key})) {
            kept.push_back(key);
        } else {
            refused = key;
        }
    }
    CHECK(refused != 0 && !table.find(refused, 1).has_value());
    for (const std::uint64_t key : kept) CHECK_EQUAL(table.find(key, 1)->a, key);
    table.put(refused, 1, {1, 2, 3});
    CHECK_EQUAL(table.find(refused, 1)->b, std::uint64_t{2});
}

// What a thread has added is there until it forgets it, whichever places others take and leave meanwhile.
void test_added_keys_stay(Table& table) {
    constexpr std::uint64_t kThreads = 4, kKeys = 200;
    std::vector<std::thread> threads;
    std::atomic<bool> mixed{false}, lost{false}, came_back{false};
    std::atomic<std::uint64_t> added{0}, refused{0};
    for (std::uint64_t start = 0; start < kThreads; ++start) {
        threads.emplace_back([&, start] {
            std::vector<bool> mine(kKeys + kThreads);
            for (std::uint64_t round = 0; round < 20'000; ++round) {
                const std::uint64_t key =
                    1 + start + explsched::intercept::mixed(round) % (kKeys / kThreads) * kThreads;
                const auto before = table.find(key, 1);
                if (mine[key] && !before) lost = true;
                if (!mine[key] && before) came_back = true;
                if (mine[key]) table.forget(key);
                mine[key] = !mine[key] && table.put_if_room(key, 1, {key, key * 3, round});
                ++(mine[key] ? added : refused);
                const std::uint64_t other = 1 + explsched::intercept::mixed(round + start) % kKeys;
                const auto value = table.find(other, 1);
                if (value && (value->a != other || value->b != other * 3)) mixed = true;
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(!mixed && !lost && !came_back);
    CHECK(added > 0 && refused > 0);
}

}  // namespace

int main() {
    static Table table;
    test_epochs(table);
    static Table tables[5];
    test_no_mixtures(tables[0]);
    test_places_of_forgotten_keys_are_used_again(tables[1]);
    test_a_key_has_one_place(tables[2]);
    test_without_room_nothing_is_replaced(tables[3]);
    test_added_keys_stay(tables[4]);
}
