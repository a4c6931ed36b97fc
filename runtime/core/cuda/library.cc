#include "runtime/core/cuda/library.h"

#include <dlfcn.h>

#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"

namespace tensorwright {

Library::Library(const std::vector<std::string>& names, const std::string& remedy) {
  std::string why;
  for (const std::string& name : names) {
    handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_) {
      name_ = name;
      return;
    }
    why += concat(why.empty() ? "" : "; ", dlerror());
  }
  throw Error("MissingDependencyError", concat("[cuda] ", remedy, " (", why, ")"));
}

void* Library::symbol(const char* name) const {
  void* found = dlsym(handle_, name);
  if (!found)
    throw Error("MissingDependencyError", concat("[cuda] ", name_, " has no ", name, ": it is too old"));
  return found;
}

}  // namespace tensorwright
