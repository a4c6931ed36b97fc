// Adapters below the bindings: the same bits in any company, and what their maker refuses.
#include <functional>

#include "runtime/core/base/error.h"
#include "runtime/core/executor/cpu_executor.h"
#include "tests/cpp/check.h"
#include "tests/cpp/toy_steps.h"

using namespace tensorwright;
using tw_test::Files;
using tw_test::Random;
using tw_test::run;
using tw_test::same_bits;
using tw_test::step_of;
using tw_test::ToyPlan;

namespace {

constexpr int32_t kBlocks = 200, kMaxTokens = 96, kMaxSeqs = 4, kMaxRank = 12;
constexpr int32_t kQkvProduct = 3, kGatedProduct = 8, kDownProduct = 9;

// The numbers of an adapter: of a part of the fused product, of both halves of the gated one, and of a
// product with a residual.
struct Numbers {
  explicit Numbers(uint64_t seed, int32_t rank) : random{seed} {
    constexpr auto hidden = static_cast<int32_t>(ToyPlan::kHidden);
    constexpr auto inter = static_cast<int32_t>(ToyPlan::kInter);
    weights.key = "adapter " + std::to_string(seed);
    add(kQkvProduct, hidden, 2 * rank, {{0, rank, 5, 16, nullptr}, {rank, rank, 32, 16, nullptr}});
    add(kGatedProduct, hidden, 2 * rank, {{0, rank, 0, inter, nullptr}, {rank, rank, 32, inter, nullptr}});
    add(kDownProduct, inter, rank, {{0, rank, 0, hidden, nullptr}});
  }

  void add(int32_t instruction, int32_t k, int32_t rank, std::vector<AdapterWeights::Part> parts) {
    for (AdapterWeights::Part& part : parts) part.b = noise(part.columns * part.rank);
    weights.products.push_back({instruction, rank, k, noise(rank * k), std::move(parts)});
  }
  const float* noise(int32_t count) {
    std::vector<float>& values = matrices.emplace_back();
    for (int32_t i = 0; i < count; ++i) values.push_back(random.uniform());
    return values.data();
  }

  Random random;
  std::vector<std::vector<float>> matrices;
  AdapterWeights weights;
};

// Sequences side by side, each from its own first block down.
Step join(const std::vector<Step>& steps) {
  Step all;
  all.seq_starts = {0};
  all.groups.resize(1);
  for (const Step& step : steps)
    all.groups[0].max_blocks = std::max(all.groups[0].max_blocks, step.groups[0].max_blocks);
  for (const Step& step : steps) {
    for (int32_t row : step.logit_rows) all.logit_rows.push_back(all.tokens() + row);
    all.token_ids.insert(all.token_ids.end(), step.token_ids.begin(), step.token_ids.end());
    all.positions.insert(all.positions.end(), step.positions.begin(), step.positions.end());
    all.seq_starts.push_back(all.tokens());
    all.context_lens.push_back(step.context_lens[0]);
    const GroupTables& from = step.groups[0];
    all.groups[0].slots.insert(all.groups[0].slots.end(), from.slots.begin(), from.slots.end());
    std::vector<int32_t> table = from.block_tables;
    table.resize(static_cast<size_t>(all.groups[0].max_blocks), -1);
    all.groups[0].block_tables.insert(all.groups[0].block_tables.end(), table.begin(), table.end());
  }
  return all;
}

CpuExecutorOptions options(int threads) {
  CpuExecutorOptions made;
  made.threads = threads;
  made.max_adapters = 2;
  made.max_adapter_rank = kMaxRank;
  return made;
}

std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.type() + ": " + error.what();
  }
  return "";
}

}  // namespace

TW_TEST(a_row_with_an_adapter_has_the_same_bits_in_any_company) {
  const Files files;
  ToyPlan toy;
  files.write(toy.bytes(), toy.data);
  std::vector<float> first;
  for (int threads : {1, 3}) {
    CpuExecutor executor(files.plan(), files.weights(), options(threads));
    executor.allocate({kBlocks}, kMaxTokens, kMaxTokens, kMaxSeqs, 0);
    const Numbers one(1, 5), two(2, 6);
    const SharedAdapter a = executor.adapters().make(one.weights), b = executor.adapters().make(two.weights);
    const std::vector<Step> steps = {step_of(0, 40, 40), step_of(0, 17, 80), step_of(0, 1, 120),
                                     step_of(0, 33, 160)};
    const std::vector<const Adapter*> adapters = {a.get(), nullptr, b.get(), a.get()};
    Step together = join(steps);
    together.adapters = adapters;
    const std::vector<float> all = run(executor, together);
    if (first.empty()) first = all;
    TW_CHECK(same_bits(all, first));
    for (size_t i = 0; i < steps.size(); ++i) {
      Step alone = steps[i];
      const std::vector<float> plain = run(executor, alone);
      alone.adapters = {adapters[i]};
      const std::vector<float> own = run(executor, alone);
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(i * ToyPlan::kVocab);
      TW_CHECK(same_bits(own, std::vector<float>(begin, begin + ToyPlan::kVocab)));
      TW_CHECK_EQ(same_bits(own, plain), adapters[i] == nullptr);
    }
  }
}

TW_TEST(an_adapter_is_there_until_nobody_holds_it) {
  const Files files;
  ToyPlan toy;
  files.write(toy.bytes(), toy.data);
  CpuExecutor executor(files.plan(), files.weights(), options(1)),
      other(files.plan(), files.weights(), options(1));
  executor.allocate({kBlocks}, kMaxTokens, kMaxTokens, kMaxSeqs, 0);
  const Numbers numbers(1, 5);
  SharedAdapter a = executor.adapters().make(numbers.weights), b = executor.adapters().make(numbers.weights);
  const auto again = [&] { executor.adapters().make(numbers.weights); };
  TW_CHECK(refusal(again).starts_with("AdapterError: at most 2 adapters"));
  b.reset();
  TW_CHECK_EQ(executor.adapters().live(), 1);
  TW_CHECK_EQ(refusal(again), std::string());
  TW_CHECK(executor.owns(*a) && !other.owns(*a));
  const SharedAdapter strange = other.adapters().make(numbers.weights);
  Step step = step_of(0, 4, 40);
  step.adapters = {strange.get()};
  TW_CHECK(refusal([&] { executor.run(step); }).find("this executor has made") != std::string::npos);
  step.adapters = {a.get(), nullptr};
  TW_CHECK(refusal([&] { executor.run(step); }).find("must have 1 entries") != std::string::npos);
}

TW_TEST(weights_that_do_not_fit_are_refused) {
  const Files files;
  ToyPlan toy;
  files.write(toy.bytes(), toy.data);
  const CpuExecutor executor(files.plan(), files.weights(), options(1));
  const std::vector<std::pair<const char*, std::function<void(AdapterWeights&)>>> changes = {
      {"is no product", [](AdapterWeights& w) { w.products[0].instruction = 2; }},
      {"is no product", [](AdapterWeights& w) { w.products[0].instruction = -1; }},
      {"is no product", [](AdapterWeights& w) { w.products[0].instruction = 1000; }},
      {"20 columns", [](AdapterWeights& w) { w.products[0].k = 21; }},
      {"must be 1 to 12", [](AdapterWeights& w) { w.products[0].rank = 13; }},
      {"has rows", [](AdapterWeights& w) { w.products[0].parts[0].first = 6; }},
      {"has columns", [](AdapterWeights& w) { w.products[0].parts[1].column = 20; }},
      {"has columns", [](AdapterWeights& w) { w.products[0].parts[1].column = 40; }},
      {"two products", [](AdapterWeights& w) { w.products.push_back(w.products[0]); }},
      {"a key must", [](AdapterWeights& w) { w.key = ""; }},
  };
  for (const auto& [words, change] : changes) {
    Numbers numbers(1, 5);
    change(numbers.weights);
    const std::string came = refusal([&] { executor.adapters().make(numbers.weights); });
    TW_CHECK(came.starts_with("InvalidOptionError") && came.find(words) != std::string::npos);
  }
  TW_CHECK_EQ(executor.adapters().live(), 0);
  CpuExecutorOptions none;
  const CpuExecutor without(files.plan(), files.weights(), none);
  const Numbers numbers(1, 5);
  TW_CHECK(refusal([&] { without.adapters().make(numbers.weights); }).find("without room") !=
           std::string::npos);
}

TW_TEST_MAIN()
