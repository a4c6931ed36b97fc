// A shared library that is looked for when it is needed, so that machines without it run everything else.
#ifndef TENSORWRIGHT_RUNTIME_CORE_CUDA_LIBRARY_H_
#define TENSORWRIGHT_RUNTIME_CORE_CUDA_LIBRARY_H_

#include <string>
#include <vector>

namespace tensorwright {

// The library stays loaded as long as the process lives: the driver has threads of its own.
class Library {
 public:
  // Loads the first of these names that is there. remedy: what to do if none is. Throws
  // Error{"MissingDependencyError"}.
  Library(const std::vector<std::string>& names, const std::string& remedy);

  // Sets `function` to the function of this name. Throws Error{"MissingDependencyError"} if the library has
  // none.
  template <typename Function>
  void find(const char* name, Function*& function) const {
    function = reinterpret_cast<Function*>(symbol(name));
  }
  const std::string& name() const { return name_; }

 private:
  void* symbol(const char* name) const;

  std::string name_;
  void* handle_ = nullptr;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_CUDA_LIBRARY_H_
