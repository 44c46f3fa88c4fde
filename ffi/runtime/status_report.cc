#include "ffi/runtime/status_report.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <concepts>
#include <span>
#include <string_view>

namespace optireduce {
namespace {

// Writes JSON without spaces; the caller opens and closes in the right order.
class JsonWriter {
 public:
  void Open(char bracket) {
    Separate();
    text_ += bracket;
    first_ = true;
  }
  void Close(char bracket) {
    text_ += bracket;
    first_ = false;
  }
  void Key(std::string_view name) {
    Write(name);
    text_ += ':';
    first_ = true;  // no comma before the value
  }
  void Write(std::string_view string) {
    Separate();
    text_ += '"';
    for (const char c : string) WriteCharacter(c);
    text_ += '"';
  }
  void Write(const char* string) { Write(std::string_view(string)); }
  void Write(bool value) {
    Separate();
    text_ += value ? "true" : "false";
  }
  template <typename Number>
    requires std::integral<Number> || std::floating_point<Number>
  void Write(Number value) {
    Separate();
    std::array<char, 40> digits{};  // more than the longest number has
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
    text_.append(digits.data(), end);
  }
  void Write(Duration duration) { Write(std::chrono::duration<double>(duration).count()); }
  void Write(Rank rank) { Write(rank.value()); }
  template <typename Value>
  void Write(const std::vector<Value>& values) {
    Open('[');
    for (const Value& value : values) Write(value);
    Close(']');
  }
  template <typename Value>
  void Write(const std::optional<Value>& value) {
    if (value) return Write(*value);
    Separate();
    text_ += "null";
  }
  template <typename Value>
  void Field(std::string_view name, const Value& value) {
    Key(name);
    Write(value);
  }
  std::string Take() { return std::move(text_); }

 private:
  void Separate() {
    if (!first_) text_ += ',';
    first_ = false;
  }
  void WriteCharacter(char c) {
    constexpr std::string_view kHex = "0123456789abcdef";  // Source: RFC 8259, section 7.
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      text_ += '\\';
      text_ += c;
    } else if (byte < 0x20) {
      text_ += "\\u00";
      text_ += kHex[byte >> 4];
      text_ += kHex[byte & 0xF];
    } else {
      text_ += c;
    }
  }

  std::string text_;
  bool first_ = true;
};

std::string_view NameOf(PeerState state) {
  switch (state) {
    case PeerState::kAlive:
      return "alive";
    case PeerState::kSuspected:
    case PeerState::kSilent:
      return "silent";
    case PeerState::kLeft:
    case PeerState::kRemovedAfterLeaving:
      return "left";
    case PeerState::kRemoved:
      return "removed";
  }
  return "";
}

void WriteIdentity(JsonWriter& json, const CallRecord& call) {
  json.Field("collective", call.collective);
  json.Field("sequence", call.sequence.value());
  json.Field("description", call.description);
  json.Field("mode", call.mode);
  json.Field("drain", call.drain);
  json.Field("bytes", call.bytes);
}

void WriteCall(JsonWriter& json, const CallRecord& call) {
  json.Open('{');
  WriteIdentity(json, call);
  json.Field("age_s", call.elapsed);
  json.Field("waiting_for", call.waiting_for);
  json.Field("absent", call.absent);
  json.Close('}');
}

void WriteLastEnded(JsonWriter& json, const CallRecord& call, Instant now) {
  json.Open('{');
  WriteIdentity(json, call);
  json.Field("state", call.state == CallRecord::State::kDone ? "done" : "failed");
  json.Field("ended_ago_s", now - (call.started + call.elapsed));
  json.Close('}');
}

void WriteDevices(JsonWriter& json, const DevicesEvent& call) {
  json.Open('{');
  json.Field("collective", call.collective);
  json.Field("sequence", call.sequence.value());
  json.Field("age_s", call.elapsed);
  json.Field("started", call.started);
  json.Field("missing", call.missing);
  json.Close('}');
}

void WritePeer(JsonWriter& json, const PeerReport& peer, Instant now) {
  std::optional<Duration> heard_ago;
  if (peer.last_heard) heard_ago = now - *peer.last_heard;
  json.Open('{');
  json.Field("rank", peer.rank);
  json.Field("state", NameOf(peer.state));
  json.Field("heard_ago_s", heard_ago);
  json.Field("bytes_sent", peer.traffic.bytes_sent);
  json.Field("bytes_received", peer.traffic.bytes_received);
  json.Field("segments_sent", peer.traffic.segments_sent);
  json.Field("segments_retransmitted", peer.traffic.segments_retransmitted);
  json.Field("segments_received", peer.traffic.segments_received);
  json.Field("segments_late", peer.traffic.segments_late);
  json.Field("rtt_s", peer.round_trip_time);
  json.Field("calls_behind", peer.calls_behind);
  json.Close('}');
}

// The calls that a report holds: the oldest.
template <typename Call>
std::span<const Call> Oldest(const std::vector<Call>& calls) {
  return std::span(calls).first(std::min(calls.size(), kCallsInReport));
}

}  // namespace

std::string ToJson(const StatusReport& report) {
  JsonWriter json;
  json.Open('{');
  json.Field("version", kStatusVersion);
  json.Field("pid", report.process);
  json.Field("rank", report.rank);
  json.Field("world_size", report.world_size);
  json.Field("session", report.session);
  json.Field("monotonic_s", report.at.time_since_epoch());
  json.Field("members", report.members);
  json.Key("calls");
  json.Open('[');
  for (const CallRecord& call : Oldest(report.calls)) WriteCall(json, call);
  json.Close(']');
  json.Field("calls_under_way", report.calls.size());
  json.Key("last_ended");
  if (report.last_ended) {
    WriteLastEnded(json, *report.last_ended, report.at);
  } else {
    json.Write(std::optional<int>());
  }
  json.Key("devices");
  json.Open('[');
  for (const DevicesEvent& call : Oldest(report.devices)) WriteDevices(json, call);
  json.Close(']');
  json.Key("peers");
  json.Open('[');
  for (const PeerReport& peer : report.peers) WritePeer(json, peer, report.at);
  json.Close(']');
  json.Field("mute_lanes", report.mute_lanes);
  json.Close('}');
  return json.Take();
}

}  // namespace optireduce
