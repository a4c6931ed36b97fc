#include "runtime/bindings/python_executor.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>

#include "runtime/bindings/bindings.h"
#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"
#include "runtime/core/interface/ranks.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {
namespace {

using Ints = std::vector<int32_t>;
using View = nb::ndarray<nb::numpy, const int32_t, nb::ndim<1>>;
using TableView = nb::ndarray<nb::numpy, const int32_t, nb::ndim<2>>;

thread_local const PythonExecutor* current = nullptr;

// Marks the thread while it is inside a call of an executor.
class Inside {
 public:
  explicit Inside(const PythonExecutor* executor) : before_(std::exchange(current, executor)) {}
  ~Inside() { current = before_; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  const PythonExecutor* before_;
};

[[noreturn]] void refuse(const std::string& fault) { throw Error("InvalidRequestError", fault); }

// Throws TensorwrightError if the executor breaks its contract, because the author of the executor must mend
// it.
template <typename... Parts>
void require(bool holds, const Parts&... fault) {
  if (!holds)
    throw Error("TensorwrightError", concat("[executor] ", fault..., "; this is a bug of the executor"));
}

std::string text(nb::handle object) { return nb::str(object).c_str(); }

// Throws an exception of Python as the one that C++ has for it.
[[noreturn]] void rethrow(const char* method, const nb::python_error& raised) {
  const std::string name = text(raised.type().attr("__name__"));
  const std::string message = text(raised.value());
  const nb::object errors = nb::module_::import_("tensorwright.errors");
  if (nb::hasattr(errors, name.c_str()) && errors.attr(name.c_str()).is(raised.type())) {
    if (name == "RankError") throw RankError(message);  // It ends the engine, and not one step.
    throw Error(name, message);
  }
  const bool memory = PyErr_GivenExceptionMatches(raised.type().ptr(), PyExc_MemoryError) != 0;
  throw Error(memory ? "OutOfMemoryError" : "TensorwrightError",
              concat("[executor] ", method, " raised ", name, message.empty() ? "" : ": ", message));
}

// Describes an array, or the object that is there instead of one.
std::string described(nb::handle object) {
  if (!nb::hasattr(object, "dtype") || !nb::hasattr(object, "shape")) return text(nb::repr(object.type()));
  std::string order;
  if (nb::hasattr(object, "flags") && !nb::cast<bool>(object.attr("flags").attr("c_contiguous")))
    order = ", not C-contiguous";
  return concat(text(object.attr("dtype")), " of shape ", text(object.attr("shape")), order);
}

template <typename T>
T fact(const nb::dict& facts, const char* name) {
  T value{};
  require(facts.contains(name), "facts() must have ", name, ", has none");
  require(nb::try_cast(facts[name], value, false), "facts()['", name, "'] must hold integers, is ",
          text(nb::repr(facts[name])));
  return value;
}

ModelFacts to_facts(nb::handle object) {
  require(nb::isinstance<nb::dict>(object), "facts() must return a dict, returned ", described(object));
  const auto dict = nb::borrow<nb::dict>(object);
  ModelFacts facts{fact<int32_t>(dict, "vocab_size"), fact<int32_t>(dict, "max_seq_len"),
                   fact<int32_t>(dict, "block_size"), fact<std::vector<int64_t>>(dict, "block_bytes"),
                   fact<Ints>(dict, "group_windows")};
  require(facts.vocab_size > 0 && facts.max_seq_len > 0 && facts.block_size > 0,
          "vocab_size, max_seq_len and block_size must be positive, are ", facts.vocab_size, ", ",
          facts.max_seq_len, " and ", facts.block_size);
  require(!facts.block_bytes.empty() && facts.block_bytes.size() == facts.group_windows.size(),
          "block_bytes and group_windows must have one entry per cache group, have ",
          facts.block_bytes.size(), " and ", facts.group_windows.size());
  for (int64_t bytes : facts.block_bytes) require(bytes > 0, "block_bytes must be positive, one is ", bytes);
  for (int32_t window : facts.group_windows)
    require(window >= 0, "group_windows must not be negative, one is ", window);
  const bool stateless = !dict.contains("state_bytes") || fact<int64_t>(dict, "state_bytes") == 0;
  require(stateless, "state_bytes must be 0 or absent: only target cpu keeps the states of recurrent layers");
  return facts;
}

// Returns whether the executor's run() returns logits, as it does unless facts() says otherwise.
bool says_logits(nb::handle facts) {
  const auto dict = nb::borrow<nb::dict>(facts);
  if (!dict.contains("gives_logits")) return true;
  bool gives = true;
  require(nb::try_cast(dict["gives_logits"], gives, false), "facts()['gives_logits'] must be a bool, is ",
          text(nb::repr(dict["gives_logits"])));
  return gives;
}

}  // namespace

PythonExecutor::PythonExecutor(nb::object executor, int threads)
    : executor_(std::move(executor)), team_(threads) {
  for (const char* method : {"facts", "allocate", "run", "copy_block", "close"}) {
    require(nb::hasattr(executor_, method), "an executor must have the method ", method, ", ",
            text(nb::repr(executor_.type())), " has none");
  }
  call("facts", [&] {
    const nb::object facts = executor_.attr("facts")();
    facts_ = to_facts(facts);
    gives_logits_ = says_logits(facts);
  });
}

PythonExecutor::~PythonExecutor() {
  if (!nb::is_alive()) {  // the interpreter is gone, and its objects with it
    (void)executor_.release();
    return;
  }
  close();
  const nb::gil_scoped_acquire gil;
  logits_ = Logits();
  executor_.reset();
}

template <typename Fn>
void PythonExecutor::call(const char* method, Fn&& fn) {
  const nb::gil_scoped_acquire gil;
  const Inside inside(this);
  try {
    fn();
  } catch (const nb::python_error& raised) {
    rethrow(method, raised);
  }
}

void PythonExecutor::close() {
  const nb::gil_scoped_acquire gil;
  if (std::exchange(closed_, true)) return;
  const Inside inside(this);
  try {
    executor_.attr("close")();
  } catch (nb::python_error& raised) {
    raised.discard_as_unraisable(executor_);
  }
}

void PythonExecutor::run_tasks(int tasks, const std::function<void(int task, int thread)>& fn) {
  team_.run(tasks, [&](int task, int thread) {
    const DenormalGuard guard(false);  // a draw must not depend on the thread
    fn(task, thread);
  });
}

bool PythonExecutor::called_here() const { return current == this; }
bool PythonExecutor::calls_here() { return current != nullptr; }

void PythonExecutor::allocate(const std::vector<int32_t>& blocks, int32_t max_tokens, int32_t max_rows,
                              int32_t max_seqs, int32_t state_slots) {
  if (checker_) refuse("allocate: may be called once only");
  if (state_slots != 0) refuse(concat("allocate: state_slots must be 0, are ", state_slots));
  call("allocate", [&] { executor_.attr("allocate")(blocks, max_tokens, max_rows, max_seqs); });
  checker_ = std::make_unique<StepChecker>(facts_, StepLimits{max_tokens, max_rows, max_seqs}, blocks);
  blocks_ = blocks;
}

LogitRows PythonExecutor::run(const Step& step) {
  if (!checker_) refuse("run: allocate() must be called first");
  checker_->check(step);
  // Python gets a copy, which lives as long as it or a view of its arrays is kept.
  call("run", [&] {
    const nb::object result = executor_.attr("run")(nb::cast(step, nb::rv_policy::copy));
    if (gives_logits_) {
      keep_logits(result, step.rows());
    } else {
      require(result.is_none(), "run must return None where gives_logits is False, returned ",
              described(result));
    }
  });
  return {logits_.data(), facts_.vocab_size, gives_logits_ ? step.rows() : 0};
}

void PythonExecutor::keep_logits(const nb::object& result, int32_t rows) {
  const auto vocab = static_cast<size_t>(facts_.vocab_size);
  Logits logits;
  const bool good = nb::try_cast(result, logits, false) && logits.shape(0) == static_cast<size_t>(rows) &&
                    logits.shape(1) == vocab;
  require(good, "run must return a C-contiguous float32 array of shape (", rows, ", ", vocab, "), returned ",
          described(result));
  logits_ = std::move(logits);
}

void PythonExecutor::copy_block(int32_t group, int32_t from, int32_t to) {
  const auto groups = static_cast<int32_t>(blocks_.size());
  if (group < 0 || group >= groups)
    refuse(concat("copy_block: group must be 0 to ", groups - 1, ", is ", group));
  for (int32_t block : {from, to}) {
    const int32_t count = blocks_[static_cast<size_t>(group)];
    if (block < 0 || block >= count)
      refuse(concat("copy_block: block must be 0 to ", count - 1, ", is ", block));
  }
  call("copy_block", [&] { executor_.attr("copy_block")(group, from, to); });
}

void PythonExecutor::copy_state(int32_t from, int32_t to) {
  refuse(concat("copy_state: there are no states, so not slots ", from, " and ", to));
}

namespace {

// Returns a view of the values; the view keeps its owner, and so the step, alive.
View view(nb::handle owner, const Ints& values) { return View(values.data(), {values.size()}, owner); }

template <Ints Step::* member>
View member_view(nb::handle_t<Step> self) {
  return view(self, nb::cast<const Step&>(self).*member);
}

const GroupTables& group_of(nb::handle_t<Step> self, int32_t group) {
  const auto& groups = nb::cast<const Step&>(self).groups;
  if (group < 0 || static_cast<size_t>(group) >= groups.size())
    refuse(concat("step: group must be 0 to ", groups.size() - 1, ", is ", group));
  return groups[static_cast<size_t>(group)];
}

TableView block_tables(nb::handle_t<Step> self, int32_t group) {
  const GroupTables& tables = group_of(self, group);
  const auto seqs = static_cast<size_t>(nb::cast<const Step&>(self).seqs());
  return TableView(tables.block_tables.data(), {seqs, static_cast<size_t>(tables.max_blocks)}, self);
}

}  // namespace

void bind_step(nb::module_& m) {
  constexpr auto policy = nb::rv_policy::reference;
  nb::class_<Step>(m, "Step",
                   "What a Python executor's run() is given: a ragged batch. Read-only int32 views, valid as "
                   "long as anybody holds them.")
      .def_prop_ro("token_ids", &member_view<&Step::token_ids>, policy, "[tokens]")
      .def_prop_ro("positions", &member_view<&Step::positions>, policy, "[tokens]")
      .def_prop_ro("seq_starts", &member_view<&Step::seq_starts>, policy,
                   "[seqs + 1]: first token of each sequence, then the number of tokens")
      .def_prop_ro("context_lens", &member_view<&Step::context_lens>, policy,
                   "[seqs]: positions in the cache once the step has written its own")
      .def_prop_ro("logit_rows", &member_view<&Step::logit_rows>, policy,
                   "[rows]: tokens whose logits are wanted")
      .def_prop_ro(
          "groups", [](const Step& step) { return step.groups.size(); }, "number of cache groups")
      .def("block_tables", &block_tables, "group"_a, policy, "[seqs, max_blocks], unused entries -1")
      .def(
          "slots",
          [](nb::handle_t<Step> self, int32_t group) { return view(self, group_of(self, group).slots); },
          "group"_a, policy, "[tokens]: block * block_size + offset");
}

}  // namespace tensorwright
