// The C++ tests' harness: TW_CHECK and friends count failures and go on; TW_TEST names a test and registers
// it. A test file holds TW_TEST blocks and one TW_TEST_MAIN() at its end. It is a program of its own, or one
// of several files of a program (CMakeLists.txt).
#ifndef TENSORWRIGHT_TESTS_CPP_CHECK_H_
#define TENSORWRIGHT_TESTS_CPP_CHECK_H_

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace tw_test {

struct Test {
  const char* name;
  std::string_view file;  // its name alone, "plan_test"
  void (*body)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

inline int& failures() {
  static int count = 0;
  return count;
}

struct Register {
  Register(const char* name, std::string_view path, void (*body)()) {
    const std::string_view file = path.substr(path.rfind('/') + 1);
    tests().push_back({name, file.substr(0, file.rfind('.')), body});
  }
};

// What the checks below call where they fail. There are thousands of checks, and a string that each made for
// itself would be most of what the compiler works on in a test.
inline void fail(const char* file, int line, const char* text) {
  ++failures();
  std::fprintf(stderr, "%s:%d: %s\n", file, line, text);
}

inline void fail(const char* file, int line, const std::string& text) { fail(file, line, text.c_str()); }

inline void check_type(const std::string& thrown, const std::string& type, const char* what, const char* file,
                       int line) {
  if (thrown != type) fail(file, line, "threw " + thrown + ", not " + type + ": " + what);
}

template <typename A, typename B>
void check_eq(const A& a, const B& b, const char* what, const char* file, int line) {
  if (a == b) return;
  std::ostringstream text;
  text << what << ": " << a << " is not " << b;
  fail(file, line, text.str());
}

// Runs every test, or those of the file that argv[1] names, of which argv[2] is in the name. The exit status
// says whether all passed.
inline int run(int argc, char** argv) {
  int ran = 0;
  for (const Test& test : tests()) {
    if (argc > 1 && test.file != argv[1]) continue;
    if (argc > 2 && !std::strstr(test.name, argv[2])) continue;
    int before = failures();
    ++ran;
    try {
      test.body();
    } catch (const std::exception& error) {
      fail(test.name, 0, std::string("threw: ") + error.what());
    }
    std::printf("%s %s\n", failures() == before ? "ok  " : "FAIL", test.name);
  }
  if (ran == 0) std::fprintf(stderr, "no test ran\n");
  return failures() != 0 || ran == 0;
}

// Whether an emulator runs the test, a hundred times slower than the processor: long sums over many rows are
// cut then.
inline bool emulated() { return std::getenv("TENSORWRIGHT_EMULATED") != nullptr; }

}  // namespace tw_test

#define TW_TEST(name)                                                      \
  static void name();                                                      \
  static const ::tw_test::Register register_##name(#name, __FILE__, name); \
  static void name()

#define TW_CHECK(condition)                                                         \
  do {                                                                              \
    if (!(condition)) ::tw_test::fail(__FILE__, __LINE__, "not true: " #condition); \
  } while (0)

#define TW_CHECK_EQ(a, b) ::tw_test::check_eq((a), (b), #a " == " #b, __FILE__, __LINE__)

// The expression must throw `Type`; with Error the type() name can be checked through TW_CHECK_ERROR.
#define TW_CHECK_THROWS(expression, Type)                                                      \
  do {                                                                                         \
    bool thrown = false;                                                                       \
    try {                                                                                      \
      (void)(expression);                                                                      \
    } catch (const Type&) {                                                                    \
      thrown = true;                                                                           \
    }                                                                                          \
    if (!thrown) ::tw_test::fail(__FILE__, __LINE__, "did not throw " #Type ": " #expression); \
  } while (0)

// The expression must throw a tensorwright::Error whose type() is `name` (include runtime/core/base/error.h).
#define TW_CHECK_ERROR(expression, name)                                    \
  do {                                                                      \
    std::string thrown = "nothing";                                         \
    try {                                                                   \
      (void)(expression);                                                   \
    } catch (const ::tensorwright::Error& error) {                          \
      thrown = error.type();                                                \
    }                                                                       \
    ::tw_test::check_type(thrown, (name), #expression, __FILE__, __LINE__); \
  } while (0)

// A group of files has one main, in the file that includes them all.
#ifdef TW_TEST_GROUP
#define TW_TEST_MAIN()
#else
#define TW_TEST_MAIN() \
  int main(int argc, char** argv) { return ::tw_test::run(argc, argv); }
#endif

#endif  // TENSORWRIGHT_TESTS_CPP_CHECK_H_
