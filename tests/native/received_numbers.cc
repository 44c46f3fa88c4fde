// The numbers received from one peer.

#include "ffi/protocol/path/received_numbers.h"

#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

void Record(ReceivedNumbers& numbers, double now, std::uint64_t number, bool wanted, bool at_once,
            bool refused) {
  const Acknowledge soon = at_once ? Acknowledge::kAtOnce : Acknowledge::kSoon;
  numbers.Record(At(now), number, wanted ? soon : Acknowledge::kNot, refused);
}

// The largest number, the acknowledged numbers of the newest `newest` ones, the refused ones of
// these, and the delay.
nb::tuple MakeAcknowledgement(ReceivedNumbers& numbers, double now, std::uint64_t newest) {
  const Acknowledgement acknowledgement = numbers.MakeAcknowledgement(At(now));
  std::vector<std::uint64_t> contained;
  std::vector<std::uint64_t> refused;
  const std::uint64_t end = acknowledgement.largest + 1;
  for (std::uint64_t number = end - std::min(newest, end); number < end; ++number) {
    if (acknowledgement.Contains(number)) contained.push_back(number);
    if (acknowledgement.Refuses(number)) refused.push_back(number);
  }
  return nb::make_tuple(acknowledgement.largest, contained, refused,
                        ToSeconds(acknowledgement.delay));
}

void Bind(nb::module_& m) {
  nb::class_<ReceivedNumbers>(m, "ReceivedNumbers")
      .def(nb::init<std::size_t, std::size_t>(), "window_datagrams"_a, "datagram_bytes"_a)
      .def("contains", &ReceivedNumbers::Contains)
      .def("record", &Record, "now"_a, "number"_a, "wanted"_a = true, "at_once"_a = false,
           "refused"_a = false)
      .def("acknowledge_at_once",
           [](ReceivedNumbers& numbers, double now) { numbers.AcknowledgeAtOnce(At(now)); })
      .def("acknowledgement_due", [](const ReceivedNumbers& numbers,
                                     double now) { return numbers.AcknowledgementDue(At(now)); })
      .def("acknowledge", &MakeAcknowledgement, "now"_a, "newest"_a = 64)
      .def_prop_ro("acknowledge_every", &ReceivedNumbers::acknowledge_every)
      .def_prop_ro("expected", &ReceivedNumbers::expected)
      .def_prop_ro("recorded", &ReceivedNumbers::recorded)
      .def_prop_ro("timeout",
                   [](const ReceivedNumbers& numbers) { return ToSeconds(numbers.timeout()); });
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
