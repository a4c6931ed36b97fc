// Runs one prompt of token ids through an engine, as generate.c does, by the C++ form of the interface.
//
//   generate_cpp ENGINE PARAMS TOKEN...
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "tensorwright.hpp"

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: generate_cpp ENGINE PARAMS TOKEN...\n";
    return 2;
  }
  std::vector<int32_t> tokens;
  for (int i = 3; i < argc; ++i) tokens.push_back(static_cast<int32_t>(std::strtol(argv[i], nullptr, 10)));
  try {
    tw::Engine engine(argv[1]);
    for (const tw::Event& event : engine.generate(tokens, argv[2])) {
      for (const int32_t token : event.tokens) std::cout << token << std::endl;
      if (event.finished())
        std::cerr << event.prompt_tokens << " tokens of prompt, " << event.cached_tokens
                  << " of them cached\n";
    }
  } catch (const tw::Error& error) {
    std::cerr << error.type() << ": " << error.what() << "\n";
    return 1;
  }
  return 0;
}
