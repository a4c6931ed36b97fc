// The topology: read from folders like the kernel's, and threads placed on its processors.
#include "runtime/core/base/topology.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "runtime/core/base/error.h"
#include "runtime/core/base/thread_team.h"
#include "runtime/core/executor/numa.h"
#include "tests/cpp/check.h"
#include "tests/cpp/fake_topology.h"

using namespace tensorwright;

namespace {

std::vector<int> ids_of(const Placement& placement) {
  std::vector<int> ids;
  for (const Processor& p : placement.processors) ids.push_back(p.id);
  return ids;
}

std::vector<int> first_ids(int count) {
  std::vector<int> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

}  // namespace

TW_TEST(nodes_caches_and_cores_are_read) {
  // Two nodes with two caches of two cores each; the second processor of core c is 8 + c. Where the numbers
  // of cores repeat, as in the clusters of a device tree, it is the same machine.
  for (const bool clusters : {false, true}) {
    const FakeTopology fake(2, 2, 2, 2, clusters);
    const Topology topology = fake.read();
    TW_CHECK_EQ(topology.nodes(), 2);
    TW_CHECK_EQ(topology.cores(), 8);
    std::vector<int> nodes, caches, ids;
    for (const Processor& p : topology.processors()) {
      nodes.push_back(p.node), caches.push_back(p.cache), ids.push_back(p.id);
      TW_CHECK_EQ(p.first_of_core, p.id < 8);
    }
    TW_CHECK(ids == (std::vector<int>{0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15}));
    TW_CHECK(nodes == (std::vector<int>{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1}));
    TW_CHECK(caches == (std::vector<int>{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3}));
  }
}

TW_TEST(only_usable_processors_count) {
  const FakeTopology fake(2, 2, 2, 2);
  const std::vector<int> usable = {9, 4, 12};  // one of a core on node 0, both of one on node 1
  const Topology topology = fake.read(usable);
  TW_CHECK_EQ(topology.nodes(), 2);
  TW_CHECK_EQ(topology.cores(), 2);
  TW_CHECK(topology.processors()[0].first_of_core && topology.processors()[0].id == 9);
}

TW_TEST(a_machine_that_is_not_described_has_one_node) {
  const std::vector<int> usable = first_ids(3);
  const Topology topology = Topology::read("/nowhere", usable);
  TW_CHECK_EQ(topology.nodes(), 1);
  TW_CHECK_EQ(topology.cores(), 3);
  TW_CHECK_EQ(Topology::read("/nowhere", {}).nodes(), 1);
  TW_CHECK_EQ(Topology::of_machine().processors().size(), static_cast<size_t>(usable_processors()));
}

TW_TEST(threads_get_cores_of_all_nodes_before_second_processors) {
  const FakeTopology fake(2, 2, 2, 2);
  const Topology topology = fake.read();
  TW_CHECK(ids_of(place_threads(topology, 8)) == first_ids(8));
  TW_CHECK(ids_of(place_threads(topology, 4)) == (std::vector<int>{0, 1, 4, 5}));
  TW_CHECK(ids_of(place_threads(topology, 3)) == (std::vector<int>{0, 1, 4}));
  TW_CHECK(ids_of(place_threads(topology, 10)) == (std::vector<int>{0, 8, 1, 2, 3, 4, 12, 5, 6, 7}));
  TW_CHECK_EQ(place_threads(topology, 16).processors.size(), size_t{16});
  TW_CHECK(place_threads(topology, 17).processors.empty());
  TW_CHECK(place_threads(topology, 4).on_node(1) == (std::vector<int>{4, 5}));
}

TW_TEST(a_small_node_gives_what_it_has) {
  const FakeTopology fake(2, 1, 4, 1);
  const std::vector<int> usable = {0, 1, 2, 3, 4};  // four cores on node 0, one on node 1
  TW_CHECK(ids_of(place_threads(fake.read(usable), 4)) == (std::vector<int>{0, 1, 2, 4}));
}

TW_TEST(threads_are_kept_to_their_processors) {
  const std::vector<int> before = usable_processor_ids();
  {
    const Topology machine = Topology::of_machine();
    const int threads = std::min(2, static_cast<int>(machine.processors().size()));
    ThreadTeam team(threads, place_threads(machine, threads));
    std::vector<std::vector<int>> seen(static_cast<size_t>(threads));
    team.run_on_each([&](int thread) { seen[static_cast<size_t>(thread)] = usable_processor_ids(); });
    for (int thread = 0; thread < threads; ++thread) {
      const int id = team.placement().processors[static_cast<size_t>(thread)].id;
      TW_CHECK(seen[static_cast<size_t>(thread)] == std::vector<int>{id});
    }
  }
  TW_CHECK(usable_processor_ids() == before);  // the caller was pinned only meanwhile
}

TW_TEST(when_threads_are_placed) {
  const FakeTopology two(2, 1, 2, 1), one(1, 1, 4, 1);
  const auto placed = [](Numa numa, const Topology& topology, int threads) {
    return placement_for(numa, topology, threads).processors.size();
  };
  TW_CHECK_EQ(placed(Numa::automatic, two.read(), 4), size_t{4});
  TW_CHECK_EQ(placed(Numa::automatic, two.read(), 3), size_t{0});
  TW_CHECK_EQ(placed(Numa::automatic, one.read(), 4), size_t{0});
  TW_CHECK_EQ(placed(Numa::split, two.read(), 3), size_t{3});
  TW_CHECK(may_place(Numa::automatic, LoadMode::copy) && may_place(Numa::split, LoadMode::copy));
  TW_CHECK(!may_place(Numa::automatic, LoadMode::map) && !may_place(Numa::off, LoadMode::copy));
  TW_CHECK_ERROR(may_place(Numa::interleave, LoadMode::map), "InvalidOptionError");
  TW_CHECK_ERROR(numa_of("both"), "InvalidOptionError");
}

TW_TEST(ranks_share_the_processors_by_nodes) {
  const FakeTopology fake(2, 2, 2, 2), uneven(3, 1, 1, 1);
  const Topology topology = fake.read();
  const auto share = [&](Numa numa, int rank, int ranks, int threads) {
    return processors_of_rank(numa, topology, rank, ranks, threads);
  };
  TW_CHECK(share(Numa::automatic, 0, 2, 4) == (std::vector<int>{0, 8, 1, 9, 2, 10, 3, 11}));
  TW_CHECK(share(Numa::automatic, 1, 2, 4) == (std::vector<int>{4, 12, 5, 13, 6, 14, 7, 15}));
  TW_CHECK(share(Numa::automatic, 2, 4, 2) == (std::vector<int>{4, 12, 5, 13}));
  TW_CHECK(share(Numa::automatic, 0, 2, 3).empty());  // cores are left over
  TW_CHECK(share(Numa::split, 0, 2, 3).size() == 8);
  TW_CHECK(share(Numa::split, 0, 16, 1).empty());  // more ranks than cores
  TW_CHECK(share(Numa::off, 0, 2, 4).empty());
  TW_CHECK_ERROR(share(Numa::interleave, 0, 2, 4), "InvalidOptionError");
  // Every processor belongs to one part, whatever the numbers.
  for (int parts = 1; parts <= 8; ++parts) {
    std::vector<int> all;
    for (int part = 0; part < parts; ++part)
      for (int id : processors_of_part(topology, part, parts)) all.push_back(id);
    std::ranges::sort(all);
    TW_CHECK(all == first_ids(16));
  }
  const FakeTopology one(1, 1, 4, 1);
  TW_CHECK(processors_of_rank(Numa::automatic, one.read(), 0, 2, 2).empty());
  TW_CHECK(processors_of_part(uneven.read(), 1, 2) == (std::vector<int>{1, 2}));
}

TW_TEST(a_matrix_lies_where_its_threads_read_it) {
  const FakeTopology fake(2, 1, 2, 1);
  const Placement placement = place_threads(fake.read(), 4);
  constexpr uint64_t kPage = MappedFile::kPage;
  Plan plan;
  plan.header.weights_bytes = 11 * kPage;
  const auto weight = [&](uint64_t offset, uint64_t bytes) {
    WeightRecord record{};
    record.offset = offset, record.bytes = bytes;
    plan.weights.push_back(record);
  };
  weight(0, 2 * kPage);                    // a table: in turns
  weight(2 * kPage, 6 * kPage);            // a matrix
  weight(8 * kPage + 64, 2 * kPage + 64);  // a matrix that begins within a page
  Instruction table{}, matrix{}, second{};
  table.op = 1, matrix.op = 3, second.op = 32;  // embedding, matmul, weight_only_matmul
  table.weight[0] = 0, matrix.weight[0] = 1, second.weight[0] = 2;
  plan.instructions = {table, matrix, second};
  TW_CHECK(place_weights(plan, placement, Numa::split) ==
           (std::vector<int>{0, 0, 0, 0, 0, 1, 1, 1, 0, 1, 1}));
  TW_CHECK(place_weights(plan, placement, Numa::interleave) ==
           (std::vector<int>{0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1}));
  TW_CHECK(place_weights(plan, {}, Numa::split).empty());
}

TW_TEST_MAIN()
