#include "llmc/cuda_on_cpu/clock/record.h"

#include "llmc/base/error.h"
#include "llmc/cuda_on_cpu/queue/device.h"

namespace host {
namespace {

using Kind = RecordedStep::Kind;

class RecordingRecorder : public Recorder {
public:
    Recording recording;

    void operation(int stream, const Operation& operation) override {
        RecordedStep step{Kind::operation, stream, 0, operation.name, operation.file, operation.line, operation.work};
        if (step.work.bytes == 0)
            for (const Access& access : operation.accesses) step.work.bytes += static_cast<double>(access.bytes);
        recording.push_back(std::move(step));
    }
    void event_recorded(int stream, std::uint64_t record) override { add(Kind::event_recorded, stream, record); }
    void event_awaited(int stream, std::uint64_t record) override { add(Kind::event_awaited, stream, record); }
    void host_waited_for_stream(int stream) override { add(Kind::host_waited_for_stream, stream, 0); }
    void host_waited_for_event(std::uint64_t record) override { add(Kind::host_waited_for_event, 0, record); }

private:
    void add(Kind kind, int stream, std::uint64_t record) {
        recording.push_back({kind, stream, record, "", "", 0, {}});
    }
};

// Sets a recorder while the object lives.
class RecorderScope {
public:
    explicit RecorderScope(Recorder* recorder) {
        if (device().recorder) throw Error(ErrorKind::bug, "host::record inside of host::record");
        set_recorder(recorder);
    }
    ~RecorderScope() { set_recorder(nullptr); }
    RecorderScope(const RecorderScope&) = delete;
    RecorderScope& operator=(const RecorderScope&) = delete;
};

}   // namespace

Recording record(const std::function<void()>& program) {
    RecordingRecorder recorder;
    RecorderScope scope(&recorder);
    program();
    return std::move(recorder.recording);
}

}   // namespace host
