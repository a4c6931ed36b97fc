// Engine, its options and its events in Python. The GIL is free wherever a call may wait; the engine's own
// thread touches Python only where the executor is written in Python. It has more than 500 lines because each
// field of the options and of an event is bound by a line with its words.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "runtime/bindings/adapters.h"
#include "runtime/bindings/bindings.h"
#include "runtime/bindings/cache_feed.h"
#include "runtime/bindings/conversions.h"
#include "runtime/bindings/cuda_executor.h"
#include "runtime/bindings/live_engines.h"
#include "runtime/bindings/prefix_transfers.h"
#include "runtime/bindings/python_rows.h"
#include "runtime/bindings/rank_options.h"
#include "runtime/bindings/spans.h"
#include "runtime/core/engine/engine.h"
#include "runtime/core/engine/stats_fields.h"
#include "runtime/core/executor/cpu_executor.h"
#include "runtime/core/speculation/draft_heads.h"
#include "runtime/core/speculation/draft_model.h"
#include "runtime/core/speculation/heads_at_once.h"
#include "runtime/core/speculation/ngram_proposer.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {

namespace {

using Ints = std::vector<int32_t>;

struct PyEngineOptions : EngineOptions {
  int threads = 0;
  std::string draft_plan, draft_weights;  // the engine of the draft model
  int64_t draft_kv_bytes = 0;             // of its KV cache
  std::string proposer;                   // "": none, "ngram", "suffix", "draft" or "heads"
  Ints draft_token_ids;                   // the target's token for each of the heads'; empty: the same
  int64_t draft_remembered = 0;           // tokens of outputs, of proposer "suffix"
  int32_t draft_least = 2;                // tokens that must be equal before a text is thought to go on alike
  std::string load = "map", numa = "auto";
  WorkCut cut;
  std::vector<int> processors;
  size_t populate_bytes = 0;
  bool trace = false, trace_steps = false;
  RankOptions ranks;
  int32_t max_adapters = 0, max_adapter_rank = 0;
};

class PyEngine {
 public:
  PyEngine(const std::string& plan, const std::string& weights, const PyEngineOptions& options) {
    make_timeline(options);
    CpuExecutorOptions executor{options.threads,
                                load_mode(options.load),
                                options.populate_bytes,
                                numa_of(options.numa),
                                options.cut,
                                options.processors,
                                nullptr,
                                options.trace ? timeline_ : nullptr,
                                options.ranks.place(),
                                options.max_adapters,
                                options.max_adapter_rank};
    nb::gil_scoped_release release;
    auto cpu = std::make_unique<CpuExecutor>(plan, weights, executor);
    profile_ = &cpu->profile();
    if (!options.ranks.ranks) adapters_ = &cpu->adapters();
    std::unique_ptr<Proposer> proposer =
        make_proposer(options, *cpu, [&] { return open_draft(options, *cpu); });
    start(lead_ranks(std::move(cpu), options.ranks, timeline_), options, nullptr, std::move(proposer));
  }
  PyEngine(PyCudaExecutor& executor, const PyEngineOptions& options, PyCudaExecutor* draft) {
    refuse_cpu_options(options);
    make_timeline(options);
    if ((options.proposer == "draft") != (draft != nullptr))
      throw Error("InvalidOptionError",
                  "[engine] proposer 'draft' needs the executor of a draft model, and no other takes one");
    std::unique_ptr<Executor> model = draft ? draft->take() : nullptr;
    std::unique_ptr<CudaExecutor> cuda = executor.take();
    const nb::gil_scoped_release release;
    std::unique_ptr<Proposer> proposer = make_proposer(options, *cuda, [&] { return std::move(model); });
    start(std::move(cuda), options, nullptr, std::move(proposer));
  }
  PyEngine(nb::object executor, const PyEngineOptions& options) {
    refuse_cpu_options(options);
    if (!options.proposer.empty()) {
      throw Error("InvalidOptionError",
                  "[engine] an executor in Python verifies no proposals, got proposer '" + options.proposer +
                      "'; leave it out, or build the model for target cpu or cuda");
    }
    make_timeline(options);
    auto python = std::make_unique<PythonExecutor>(std::move(executor), options.threads);
    PythonExecutor* raw = python.get();
    nb::gil_scoped_release release;
    start(lead_ranks(std::move(python), options.ranks, timeline_), options, raw);
  }
  ~PyEngine() {
    nb::gil_scoped_release release;
    live_engines().destroy(std::exchange(running_, nullptr));
  }

  void submit(int64_t id, nb::handle prompt, const Sampling& sampling, nb::handle first_mask) {
    Request request{id, to_tokens(prompt), sampling, {}};
    if (!first_mask.is_none()) request.first_mask = to_mask(first_mask, "first_mask");
    nb::gil_scoped_release release;
    running_->engine->submit(std::move(request));
  }
  bool set_mask(int64_t id, int32_t completion, int32_t generated, nb::handle bits) {
    MaskWords words = to_mask(bits, "bits");
    nb::gil_scoped_release release;
    return running_->engine->set_mask(id, completion, generated, std::move(words));
  }
  bool abort(int64_t id, int32_t completion) {
    nb::gil_scoped_release release;
    return running_->engine->abort(id, completion);
  }
  std::vector<Event> wait_events(double timeout_s) {
    PythonRows::release_dropped();
    nb::gil_scoped_release release;
    return running_->engine->wait_events(timeout_s);
  }
  void begin_shutdown(bool drain) {
    nb::gil_scoped_release release;
    running_->engine->begin_shutdown(drain);
  }
  bool turn() {
    nb::gil_scoped_release release;
    return running_->engine->turn();
  }
  void shutdown(bool drain, double timeout_s) {
    nb::gil_scoped_release release;
    running_->shutdown(drain, timeout_s);
  }
  // The next three functions serve the garbage collector, because an executor may refer to an object that
  // holds the engine.
  static int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    const PyEngine* engine = nb::inst_ready(self) ? nb::inst_ptr<PyEngine>(self) : nullptr;
    if (engine && engine->running_ && engine->running_->python)
      Py_VISIT(engine->running_->python->object().ptr());
    return 0;
  }
  static void finalize(PyObject* self) {  // runs while the executor is still whole
    PyEngine* engine = nb::inst_ptr<PyEngine>(self);
    if (nb::inst_ready(self) && engine->is_here() && !engine->called_here()) engine->shutdown(false, 0);
  }
  static int clear(PyObject* self) {
    PyEngine* engine = nb::inst_ptr<PyEngine>(self);
    nb::gil_scoped_release release;
    live_engines().destroy(std::exchange(engine->running_, nullptr));
    return 0;
  }

  PyAdapter make_adapter(const std::string& key, const std::vector<AdapterProductTuple>& products) const {
    return tensorwright::make_adapter(adapters(), key, products);
  }
  int32_t live_adapters() const { return adapters_ ? adapters_->live() : 0; }

  PrefixTransfers prefix_transfers() const { return PrefixTransfers(running_); }
  CacheFeed cache_feed() const { return CacheFeed(running_); }
  std::vector<std::string> take_notices() const { return running_->engine->take_notices(); }
  bool is_here() const { return running_ && running_->is_here(); }
  bool called_here() const {
    return PythonRows::calls_here() || (running_->python && running_->python->called_here());
  }
  bool stopped() const { return running_->engine->stopped(); }
  std::string cause() const { return running_->engine->cause(); }
  Facts stats() const;
  Facts facts() const;
  Profile& profile() const {
    if (profile_) return *profile_;
    throw Error(
        "InvalidOptionError",
        "[engine] only an engine of target cpu measures its instructions, got one with an executor of its "
        "own; use the profiler of its runtime");
  }

  Timeline& timeline() const {
    if (timeline_) return *timeline_;
    throw Error("InvalidOptionError", "[engine] no timeline was kept: neither trace nor trace_steps was set");
  }

 private:
  static void refuse_cpu_options(const PyEngineOptions& options) {
    const auto refuse = [](const std::string& what) {
      throw Error("InvalidOptionError", "[engine] " + what + "' for an executor of its own; leave it out");
    };
    if (options.load != "map") refuse("load is an option of the cpu executor, got '" + options.load);
    if (numa_of(options.numa) == Numa::split || numa_of(options.numa) == Numa::interleave)
      refuse("numa is an option of the cpu executor, got '" + options.numa);
  }

  void make_timeline(const PyEngineOptions& options) {
    if (options.trace || options.trace_steps) timeline_ = std::make_shared<Timeline>();
  }

  void start(std::unique_ptr<Executor> executor, const PyEngineOptions& options, PythonExecutor* python,
             std::unique_ptr<Proposer> proposer = nullptr) {
    auto running = std::make_shared<RunningEngine>();
    EngineOptions own = options;
    own.jump_forward = options.jump_forward && python == nullptr;
    own.timeline = timeline_;
    running->engine = std::make_unique<Engine>(std::move(executor), own, std::move(proposer));
    running->python = python;
    live_engines().add(running);
    running_ = std::move(running);
  }

  // open_draft: returns the executor of the draft model, for proposer "draft".
  template <typename OpenDraft>
  static std::unique_ptr<Proposer> make_proposer(const PyEngineOptions& options, Executor& target,
                                                 const OpenDraft& open_draft) {
    if (options.proposer.empty()) return nullptr;
    if (options.proposer == "ngram") return std::make_unique<NgramProposer>(options.draft_least);
    if (options.proposer == "suffix")
      return std::make_unique<NgramProposer>(options.draft_least, options.draft_remembered);
    if (options.proposer == "draft")
      return make_draft_model(options, open_draft(), target.facts().vocab_size);
    if (options.proposer == "heads") {
      const HeadsOptions heads{options.max_batch_size, options.max_num_tokens, options.draft_token_ids};
      if (target.facts().draft_width > 0 && tokens_at_once(target.facts(), heads.tokens) > 1)
        return std::make_unique<HeadsAtOnce>(target, heads);
      return std::make_unique<DraftHeads>(target, heads);
    }
    throw Error(
        "InvalidOptionError",
        "[engine] a proposer must be 'ngram', 'suffix', 'draft' or 'heads', got '" + options.proposer + "'");
  }

  // Opens a draft model on target cpu. It computes on the threads of the target, between its steps.
  static std::unique_ptr<Executor> open_draft(const PyEngineOptions& options, const CpuExecutor& target) {
    const CpuExecutorOptions executor{
        options.threads, load_mode(options.load), 0, numa_of(options.numa), options.cut, {}, target.team()};
    return std::make_unique<CpuExecutor>(options.draft_plan, options.draft_weights, executor);
  }

  // vocab: of the model that verifies.
  static std::unique_ptr<Proposer> make_draft_model(const PyEngineOptions& options,
                                                    std::unique_ptr<Executor> draft, int32_t vocab) {
    EngineOptions limits = options;
    limits.kv_cache_bytes = options.draft_kv_bytes;
    DraftModelOptions model;
    model.shapes = share_blocks(draft->facts(), limits);
    model.max_seqs = options.max_batch_size;
    model.max_tokens = options.max_num_tokens;
    model.target_vocab = vocab;
    model.prefix_cache = options.prefix_cache;
    return std::make_unique<DraftModel>(std::move(draft), std::move(model));
  }

  static Ints to_tokens(nb::handle prompt) {
    nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> array;
    if (nb::try_cast(prompt, array, false)) return Ints(array.data(), array.data() + array.size());
    Ints tokens;
    if (nb::try_cast(prompt, tokens)) return tokens;
    throw Error("InvalidRequestError",
                "[request] a prompt must be a list of int32 or a one-dimensional int32 array, got " +
                    std::string(nb::repr(prompt.type()).c_str()) + "; convert it");
  }

  std::shared_ptr<RunningEngine> running_;
  const AdapterProducts& adapters() const {
    if (adapters_) return *adapters_;
    throw Error("InvalidOptionError",
                "[engine] only an engine of target cpu and of one rank has adapters; build such a one");
  }

  const AdapterProducts* adapters_ = nullptr;  // of a cpu executor, which lives as long as the engine
  Profile* profile_ = nullptr;          // the profile of a cpu executor, which lives as long as the engine
  std::shared_ptr<Timeline> timeline_;  // null: nothing is kept
};

// Puts each value that it is called with into a dict, by name.
struct IntoDict {
  Facts& dict;

  template <typename Value>
  void operator()(const char* name, const Value& value) const {
    dict[name] = value;
  }
  void operator()(const char* name, const std::vector<EngineStats::Blocks>& groups) const {
    nb::list all;
    for (const EngineStats::Blocks& blocks : groups) {
      Facts group;
      visit_blocks(blocks, IntoDict{group});
      all.append(group);
    }
    dict[name] = all;
  }
};

Facts PyEngine::stats() const {
  Facts d;
  visit_stats(running_->engine->stats(), running_->engine->facts().block_size, IntoDict{d});
  return d;
}

Facts PyEngine::facts() const {
  Facts d;
  visit_facts(*running_->engine, IntoDict{d});
  return d;
}

PyType_Slot engine_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&PyEngine::traverse)},
                              {Py_tp_finalize, reinterpret_cast<void*>(&PyEngine::finalize)},
                              {Py_tp_clear, reinterpret_cast<void*>(&PyEngine::clear)},
                              {0, nullptr}};

void bind_options(nb::module_& m) {
  nb::class_<PyEngineOptions>(
      m, "EngineOptions", "How an engine runs. kv_cache_bytes must be set: it is shared by all cache groups.")
      .def(nb::init<>())
      .def_rw("kv_cache_bytes", &PyEngineOptions::kv_cache_bytes, "bytes")
      .def_rw("max_batch_size", &PyEngineOptions::max_batch_size, "sequences running at once")
      .def_rw("max_num_tokens", &PyEngineOptions::max_num_tokens, "tokens in a step, at least max_batch_size")
      .def_rw("max_queue", &PyEngineOptions::max_queue,
              "requests alive beyond max_batch_size, before submit raises QueueFullError")
      .def_rw("max_prompt_rows", &PyEngineOptions::max_prompt_rows,
              "prompt positions in a step whose logits are wanted, for prompt_logprobs")
      .def_rw("threads", &PyEngineOptions::threads, "0: one per usable processor")
      .def_rw("load", &PyEngineOptions::load, "'map' or 'copy'")
      .def_rw(
          "processors", &PyEngineOptions::processors,
          "the processors of this rank where ranks share the machine; empty: all that the process may use")
      .def_rw("numa", &PyEngineOptions::numa, "'auto', 'off', 'split' or 'interleave'; see executor/numa.h")
      .def_prop_rw(
          "work_cut", [](const PyEngineOptions& self) { return work_cut_values(self.cut); },
          [](PyEngineOptions& self, const WorkCutValues& values) { self.cut = work_cut(values); },
          "How products are cut into tasks, by name; see base/work_cut.h. Raises InvalidOptionError.")
      .def_rw("populate_bytes", &PyEngineOptions::populate_bytes,
              "memory whose page faults are taken before the first request")
      .def_rw("ranks", &PyEngineOptions::ranks, "the ranks of a parallel engine")
      .def_rw("max_adapters", &PyEngineOptions::max_adapters, "adapters that may live at once")
      .def_rw("max_adapter_rank", &PyEngineOptions::max_adapter_rank,
              "the most rows of the first matrix of one product of an adapter, of all its parts together")
      .def_rw("trace", &PyEngineOptions::trace,
              "whether the spans of steps, instructions and threads are kept")
      .def_rw("trace_steps", &PyEngineOptions::trace_steps,
              "whether the spans of steps and requests are kept, without those of instructions and threads")
      .def_rw("prefix_cache", &PyEngineOptions::prefix_cache)
      .def_rw("jump_forward", &PyEngineOptions::jump_forward,
              "whether tokens that a grammar forces are computed with the token before them; only target cpu")
      .def_rw(
          "state_snapshots", &PyEngineOptions::state_snapshots,
          "states of recurrent layers that the prefix cache keeps, besides those of max_batch_size sequences")
      .def_rw("pinned_bytes", &PyEngineOptions::pinned_bytes,
              "of kv_cache_bytes, what pinned prefixes may hold, 0: none")
      .def_rw("cache_events", &PyEngineOptions::cache_events,
              "events of the prefix cache that are kept for those who read them, 0: none; needs tier_secret")
      .def_prop_rw(
          "tier_memory_bytes", [](const PyEngineOptions& o) { return o.tiers.memory_bytes; },
          [](PyEngineOptions& o, int64_t bytes) { o.tiers.memory_bytes = bytes; },
          "memory for blocks that the prefix cache forgets, 0: none")
      .def_prop_rw(
          "tier_disk", [](const PyEngineOptions& o) { return o.tiers.disk; },
          [](PyEngineOptions& o, const std::string& path) { o.tiers.disk = path; },
          "the directory for such blocks, '': none")
      .def_prop_rw(
          "tier_disk_bytes", [](const PyEngineOptions& o) { return o.tiers.disk_bytes; },
          [](PyEngineOptions& o, int64_t bytes) { o.tiers.disk_bytes = bytes; }, "the most bytes there")
      .def_prop_rw(
          "tier_ttl", [](const PyEngineOptions& o) { return o.tiers.ttl_s; },
          [](PyEngineOptions& o, double seconds) { o.tiers.ttl_s = seconds; },
          "seconds for which a block is kept after its last use, 0: no limit")
      .def_prop_rw(
          "tier_secret",
          [](const PyEngineOptions& o) { return nb::bytes(o.tiers.secret.data(), o.tiers.secret.size()); },
          [](PyEngineOptions& o, const nb::bytes& secret) {
            o.tiers.secret.assign(secret.c_str(), secret.size());
          },
          "32 bytes that the names of blocks are made with")
      .def_prop_rw(
          "tier_identity", [](const PyEngineOptions& o) { return o.tiers.identity; },
          [](PyEngineOptions& o, const std::string& identity) { o.tiers.identity = identity; },
          "what engines that compute the same bits have in common")
      .def_prop_rw(
          "draft_tokens", [](const PyEngineOptions& o) { return o.speculation.tokens; },
          [](PyEngineOptions& o, int32_t tokens) { o.speculation.tokens = tokens; },
          "tokens proposed for a sequence in a step, 0: as many as pay")
      .def_prop_rw(
          "draft_rows", [](const PyEngineOptions& o) { return o.speculation.max_rows; },
          [](PyEngineOptions& o, int32_t rows) { o.speculation.max_rows = rows; },
          "proposed tokens of all sequences in a step")
      .def_rw("proposer", &PyEngineOptions::proposer,
              "'': nothing is proposed, 'ngram', 'suffix', 'draft' or 'heads'")
      .def_rw("draft_token_ids", &PyEngineOptions::draft_token_ids,
              "the target's token for each that heads propose, []: the same tokens")
      .def_rw("draft_remembered", &PyEngineOptions::draft_remembered,
              "tokens of outputs, of proposer 'suffix'")
      .def_rw("draft_plan", &PyEngineOptions::draft_plan, "the plan of the draft model")
      .def_rw("draft_weights", &PyEngineOptions::draft_weights, "the weights of the draft model")
      .def_rw("draft_kv_bytes", &PyEngineOptions::draft_kv_bytes, "bytes of the draft model's KV cache")
      .def_rw("draft_least", &PyEngineOptions::draft_least, "tokens that must be equal, at least 2")
      .def_rw("max_chunk", &PyEngineOptions::max_chunk, "tokens of one prefill in a step, 0: no cap")
      .def_rw("itl_goal_s", &PyEngineOptions::itl_goal_s,
              "seconds between two tokens of a completion, 0: none; see scheduler/step_pace.h")
      .def_rw("ageing_s", &PyEngineOptions::ageing_s,
              "seconds of waiting that are worth one priority, 0: none; see scheduler/scheduler.h")
      .def_rw("debug_preempt_every", &PyEngineOptions::debug_preempt_every,
              "for tests: steps between forced preemptions, 0: none")
      .def_rw("debug_seed", &PyEngineOptions::debug_seed, "for tests: decides who is preempted")
      .def_rw("debug_stepped", &PyEngineOptions::debug_stepped,
              "for tests: no thread of its own, Engine.turn() does what that would do")
      .def_rw("debug_lose_block", &PyEngineOptions::debug_lose_block,
              "for tests: the step after which a block is lost, 0: none");
}

std::vector<LogprobTuples> all_tuples(const std::vector<std::vector<TokenLogprob>>& tokens) {
  std::vector<LogprobTuples> all;
  for (const auto& token : tokens) all.push_back(to_tuples(token));
  return all;
}

using Floats = nb::ndarray<nb::numpy, float, nb::ndim<1>, nb::c_contig>;

void bind_event(nb::module_& m) {
  nb::class_<Event>(m, "Event", "News of one request.")
      .def_ro("request_id", &Event::request_id)
      .def_ro("completion", &Event::completion, "which of the n; each has a last event")
      .def_ro("tokens", &Event::tokens)
      .def_prop_ro(
          "logprobs", [](const Event& event) { return all_tuples(event.logprobs); },
          "parallel to tokens, or empty: (token, logprob, rank) of the sampled token, then of the others "
          "asked for")
      .def_prop_ro(
          "prompt_logprobs", [](const Event& event) { return all_tuples(event.prompt_logprobs); },
          "of the next prompt tokens, from the second on, if asked for: (token, logprob, rank) of the token, "
          "then of the others")
      .def_prop_ro(
          "pooled",
          [](const Event& event) -> std::optional<Floats> {
            if (event.pooled.empty()) return std::nullopt;
            auto copy = std::make_unique<float[]>(event.pooled.size());
            std::ranges::copy(event.pooled, copy.get());
            nb::capsule owner(copy.get(), [](void* data) noexcept { delete[] static_cast<float*>(data); });
            return Floats(copy.release(), {event.pooled.size()}, owner);
          },
          nb::rv_policy::automatic,
          "float32 [columns] of a request that pools, in its last event; None in all others")
      .def_ro("finish", &Event::finish,
              "'', 'stop', 'length', 'abort', 'timeout' or 'error'; not '' in the last event")
      .def_ro("stop_token", &Event::stop_token,
              "what ended the request, -1: nothing did; it is in tokens too")
      .def_ro("error_type", &Event::error_type, "a class of tensorwright.errors")
      .def_ro("error", &Event::error)
      .def_ro("prompt_tokens", &Event::prompt_tokens)
      .def_ro("cached_tokens", &Event::cached_tokens, "prompt tokens the prefix cache had at the start")
      .def_ro("draft_tokens", &Event::draft_tokens, "tokens that were proposed for the completion")
      .def_ro("accepted_tokens", &Event::accepted_tokens, "those of them that were right")
      .def_ro("cumulative_logprob", &Event::cumulative_logprob, "of a beam's tokens, in its last event")
      .def_ro("queue_s", &Event::queue_s, "arrival to the first step, -1: not started")
      .def_ro("first_token_s", &Event::first_token_s, "arrival to the first token, -1: none yet");
}

}  // namespace

void bind_engine(nb::module_& m) {
  bind_options(m);
  bind_event(m);
  bind_step(m);
  nb::class_<PyEngine>(m, "Engine", nb::type_slots(engine_slots),
                       "The served engine: in-flight batching on a thread of its own. Thread-safe.")
      .def(nb::init<const std::string&, const std::string&, const PyEngineOptions&>(), "plan_path"_a,
           "weights_path"_a, "options"_a, "Raises EngineError, InvalidOptionError, OutOfMemoryError.")
      .def(nb::init<PyCudaExecutor&, const PyEngineOptions&, PyCudaExecutor*>(), "executor"_a, "options"_a,
           "draft"_a.none() = nb::none(),
           "An executor of target cuda, which the engine takes over; so it does that of the draft model.")
      .def(
          nb::init<nb::object, const PyEngineOptions&>(), "executor"_a, "options"_a,
          "An executor written in Python: facts, allocate, run, copy_block and close, called by the engine's "
          "thread.")
      .def("submit", &PyEngine::submit, "request_id"_a, "prompt"_a, "sampling"_a, "first_mask"_a = nb::none(),
           "prompt: list of ints or int32 [tokens]. first_mask: as set_mask's bits, of token 0 of every "
           "completion, for guided requests only. Raises InvalidRequestError, PromptTooLongError, "
           "QueueFullError, "
           "EngineStoppedError, before anything starts.")
      .def("set_mask", &PyEngine::set_mask, "request_id"_a, "completion"_a, "generated"_a, "bits"_a,
           "Which tokens a guided completion may have as token number `generated`, from 0: uint32 "
           "[ceil(vocab_size / 32)], bit t % 32 of word t / 32 for token t. Until it comes the completion "
           "sits out steps. False if the "
           "completion is not alive. Raises InvalidRequestError.")
      .def("abort", &PyEngine::abort, "request_id"_a, "completion"_a = int32_t{Engine::kAll},
           "False if it is not alive; else its last event follows. completion: one that has tokens, -1: all.")
      .def("wait_events", &PyEngine::wait_events, "timeout_s"_a,
           "All news, waiting for some if there is none; empty at once after the end.")
      .def("stats", &PyEngine::stats,
           "Counts as of the last step; blocks are those of the cache group with the widest window, `groups` "
           "has all.")
      .def("facts", &PyEngine::facts, "vocab_size, max_seq_len, block_size, blocks and more.")
      .def(
          "profile", [](PyEngine& self, bool enable) { self.profile().enable(enable); }, "enable"_a,
          "Turns profiling on, from zero, or off; at any time.")
      .def(
          "profile_table",
          [](PyEngine& self, const std::string& phase) { return profile_table(self.profile(), phase); },
          "phase"_a = "", "As CpuExecutor's.")
      .def(
          "profile_steps", [](PyEngine& self) { return profile_steps(self.profile()); }, "As CpuExecutor's.")
      .def(
          "timeline", [](PyEngine& self) { return spans_of(self.timeline()); },
          "With the option trace or trace_steps: int64 [spans, 9], each with kind, begin and end in "
          "nanoseconds of the "
          "steady "
          "clock, id, track, a, b, c, d (base/timeline.h), and how many there was no room for.")
      .def("shutdown", &PyEngine::shutdown, "drain"_a = true, "timeout_s"_a = -1.0,
           "Refuses new requests; lets the others finish (drain, at most timeout_s, negative: no limit) or "
           "aborts.")
      .def("begin_shutdown", &PyEngine::begin_shutdown, "drain"_a,
           "What shutdown begins with; it does not wait.")
      .def("turn", &PyEngine::turn,
           "For tests, with debug_stepped: one round of the loop. False: nothing to do, or it has ended.")
      .def("make_adapter", &PyEngine::make_adapter, "key"_a, "products"_a,
           "Copies the weights of an adapter. key: a text of its content. products: (instruction, a [rank, "
           "k], parts) "
           "with parts (first row of a, first column, b [columns, rank]), matrices of float32: the columns "
           "of the "
           "instruction's sums get (x a^T) b^T, as runtime/core/executor/adapters.h says. Raises "
           "InvalidOptionError, AdapterError, OutOfMemoryError.")
      .def("live_adapters", &PyEngine::live_adapters,
           "How many adapters there are, those counted that only requests "
           "still use.")
      .def("take_notices", &PyEngine::take_notices,
           "What the tiers of the prefix cache have to tell people since the last call.")
      .def("prefix_transfers", &PyEngine::prefix_transfers,
           "What gives prefixes of the cache to other engines and takes theirs.")
      .def("cache_feed", &PyEngine::cache_feed,
           "What tells which blocks the prefix cache stores and removes.")
      .def_prop_ro("stopped", &PyEngine::stopped)
      .def_prop_ro("cause", &PyEngine::cause, "Why it stopped; empty while it has not.")
      .def_prop_ro(
          "called_here", &PyEngine::called_here,
          "Whether the caller is inside this engine's executor, and so may not wait for the engine.");
  m.def(
      "hold_clock",
      [](double seconds) {
        using std::chrono::duration, std::chrono::duration_cast;
        Clock::hold(Clock::time_point(duration_cast<Clock::duration>(duration<double>(seconds))));
      },
      "seconds"_a, "For tests: the time of all engines of the process stands still there.");
  m.def("release_clock", &Clock::release, "After hold_clock.");
  nb::module_::import_("atexit").attr("register")(nb::cpp_function([] {
    nb::gil_scoped_release release;
    live_engines().stop();
  }));
}

}  // namespace tensorwright
