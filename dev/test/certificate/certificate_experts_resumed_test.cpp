// The certificate of mixtures whose run is cut and resumed with experts dealt out to other numbers of ranks.
#include "dev/test/certificate/expert_layouts_testing.h"
#include "llmc/io/file.h"
#include "llmc/run/save_training_state_testing.h"

using namespace certificate;

namespace {

void load(Rank& rank, const std::string& checkpoint) {
    const RunState state = load_training_state(real_files(), checkpoint, tensors_of(rank.step()), rank.stream());
    rank.stage().router_bias().set(state.router_bias);
}

void save(Rank& rank, TestRank& me, const std::string& folder, int step) {
    RunState state;
    state.step = step;
    state.router_bias = rank.stage().router_bias().values();
    const Gatherer gatherer(rank.stage().storage(), me.world.group(stage_axes), true, rank.arena(), rank.stream());
    save_training_state(real_files(), folder, state, tensors_of(rank.step()), {"", "{}\n"}, gatherer,
                        {me.rank(), me.ranks(), [&](const std::string& own) { return me.world.gather_text(own); }});
}

std::map<std::string, std::string> files_in(const std::string& folder) {
    std::map<std::string, std::string> files;
    for (const std::string& name : real_files().list(folder)) {
        files[name] = read_whole(real_files(), folder + "/" + name);
    }
    return files;
}

// Fails where gradients of a step after loading a checkpoint are further from those of one process that loads it than
// the certificate allows. Collective.
void require_gradients_of_one(Rank& rank, TestRank& me, const Layout& one, const std::string& checkpoint, int step) {
    Rank alone(one);
    load(alone, checkpoint);
    alone.gradients(step);
    for (int param = 0; param < rank.stage().table().size(); param++) {
        const std::vector<float> found = rank.gradient(param), expected = alone.gradient(param);
        const double error = distance(found, expected) / length(expected);
        me.require(error <= tolerance.gradients, "gradient of ", rank.stage().table()[param].name, " is off by ",
                   error);
    }
}

}   // namespace

// Choices are one process's throughout: near ties the rounding of another order of sums decides.
TEST_CASE("certificate: experts cut at ep 4, resumed at ep 1 and back at ep 4 go on as one process, biases too") {
    const SharedFolder folder;
    auto small = [](Layout layout) {
        layout.step_sequences = 16, layout.router = RouterScore::sigmoid;
        return layout;
    };
    Layout one = small(dealt(1, experts(1, 0, 1)));
    one.choices = std::make_shared<Choices>();   // recorded here
    Rank uncut(one);
    const Result expected = uncut.train(6);
    const std::vector<float> bias = uncut.stage().router_bias().values();
    std::string from;   // the checkpoint to resume
    int done = 0;       // steps
    for (Layout layout : {dealt(4, experts(4, 1, 2, Recompute::block)), dealt(1, experts(2, 3, 1)),
                          dealt(4, over(experts(2, 2, 1), 2, true))}) {
        layout = small(layout);
        layout.choices = one.choices;
        const std::string to = folder / text("after ", done + 2), again = folder / text("again ", done);
        const bool ran = on_layout(layout, [&](Rank& rank, TestRank& me) {
            if (done > 0) load(rank, from), save(rank, me, again, done);
            for (int step = done + 1; step <= done + 2; step++) {
                rank.gradients(step);
                if (done > 0 && step == done + 1) require_gradients_of_one(rank, me, one, from, step);
                rank.step().update(step, layout.lr);
                const float loss = rank.step().result().loss,
                            other = expected.losses[static_cast<std::size_t>(step - 1)];
                me.require(std::abs(loss / other - 1) < static_cast<float>(tolerance.losses), "step ", step, ": loss ",
                           loss, ", expected ", other);
            }
            save(rank, me, to, done + 2);
            me.require(done < 4 || rank.stage().router_bias().values() == bias, "other biases of routers");
        });
        if (!ran) return;
        from_first_process("");   // all files are there
        if (done > 0) CHECK((files_in(again + "/" + checkpoint_name(done)) == files_in(from)));
        done += 2;
        from = to + "/" + checkpoint_name(done);
    }
}
