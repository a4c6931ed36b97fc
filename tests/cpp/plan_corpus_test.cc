// The cases that fuzzing plans found worth keeping, each run again (tests/fuzz/README.md).
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/cpp/check.h"
#include "tests/fuzz/plan_case.h"

TW_TEST(kept_cases_run_or_are_refused) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(TENSORWRIGHT_PLAN_CORPUS))
    paths.push_back(entry);
  std::ranges::sort(paths);
  int ran = 0;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(file), {});
    std::fprintf(stderr, "%s\n",
                 path.filename().c_str());  // the last line names a case that ends the process
    ran += tw_fuzz::run_plan_case(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }
  std::printf("%zu cases, of which %d ran\n", paths.size(), ran);
  TW_CHECK(ran > static_cast<int>(paths.size()) / 2);
}

TW_TEST_MAIN()
