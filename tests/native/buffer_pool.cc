// Memory that is used again.

#include "ffi/protocol/bucket/buffer_pool.h"

#include <map>

#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

// Buffers by name, for a program that gives them back in any order.
class TestBufferPool {
 public:
  TestBufferPool() = default;
  TestBufferPool(const TestBufferPool&) = delete;
  // Returns the address of the memory.
  std::uintptr_t Take(int name, std::size_t bytes) {
    Buffer buffer = pool_.Take(bytes);
    const auto address = reinterpret_cast<std::uintptr_t>(buffer.data());
    buffers_.insert_or_assign(name, std::move(buffer));
    return address;
  }
  std::size_t SizeOf(int name) const { return buffers_.at(name).size(); }
  void GiveBack(int name) { buffers_.erase(name); }
  std::size_t used_bytes() const { return pool_.used_bytes(); }

 private:
  BufferPool pool_;
  std::map<int, Buffer> buffers_;
};

void Bind(nb::module_& m) {
  nb::class_<TestBufferPool>(m, "BufferPool")
      .def(nb::init<>())
      .def("take", &TestBufferPool::Take)
      .def("size_of", &TestBufferPool::SizeOf)
      .def("give_back", &TestBufferPool::GiveBack)
      .def_prop_ro("used_bytes", &TestBufferPool::used_bytes);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
