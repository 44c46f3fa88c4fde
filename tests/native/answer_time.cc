// The usual response time of a peer.

#include "ffi/protocol/peers/answer_time.h"

#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

void Bind(nb::module_& m) {
  nb::class_<AnswerTime>(m, "AnswerTime")
      .def(nb::init<>())
      .def("note",
           [](AnswerTime& self, double now, double gap, double peer_timeout) {
             self.Record(At(now), FromSeconds(gap), FromSeconds(peer_timeout));
           })
      .def("patience", [](const AnswerTime& self, double peer_timeout) {
        return ToSeconds(self.Patience(FromSeconds(peer_timeout)));
      });
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
