#include "dev/test/certificate/certificate_testing.h"

#include <cmath>

namespace certificate {

Rank::Rank(const Layout& layout, const MeshCoordinates& at, const TrainingGroups& groups, World* world)
    : layout_(layout),
      groups_(groups),
      expert_ranks_(world ? layout.expert_ranks(*world, options(layout, at), model(layout), arena_) : nullptr),
      choices_(know_choices(at)),
      model_(model(layout), options(layout, at, world, expert_ranks_.get()), arena_, stream_.get()) {
    if (choices_ != nullptr) choices_->chooses_with(model_.router_bias().data());
    initialize_parameters(model_.parameters(), seed, model_.stream());
    OptimizerOptions adam;
    adam.weight_decay = 0.1f;
    adam.master_weights = layout.master_weights;
    adam.optimizer = layout.optimizer;
    adam.moments = layout.moments;
    step_.emplace(model_, adam, arena_, groups);
    schedule_ = schedule(layout, at);
}

Rank::~Rank() = default;

void Rank::follow(const std::vector<PipelineSchedule>& lists) {
    schedule_ = lists[static_cast<std::size_t>(model_.storage().place().at.pp)];
}

StageOptions Rank::options(const Layout& layout, const MeshCoordinates& at, World* world, ExpertRanks* expert_ranks) {
    StageOptions options;
    options.expert_ranks = expert_ranks;
    options.tp_chunks = layout.tp_chunks;
    options.ep_chunks = layout.ep_chunks;
    options.sequence_parallel = layout.sequence_parallel && layout.tp > 1;
    options.B = layout.sequences() / layout.dp / layout.micro_batches;
    options.T = layout.seq_len;
    options.ulysses = layout.ulysses;
    if (world != nullptr) options.groups = stage_groups(*world, layout.ulysses);
    options.document_mask = layout.masks_documents();
    options.recompute = layout.recompute;
    options.grad_dtype = layout.grad_dtype;
    options.capacity_factor = layout.capacity_factor;
    options.matmul_dtype = layout.matmul_dtype;
    options.z_loss = layout.like_llama() ? 0.01f : 0.0f;
    options.matmul.workspace_bytes = 1 << 16;
    if (layout.two_chunks) {
        options.chunks = {{{0, 1}, true, false}, {{1, 3}, false, true}};
        options.in_flight = {2 * layout.micro_batches, layout.micro_batches, 0};
    }
    if (layout.pipe.stages > 1) {
        options.chunks = chunks_of_stage(model(layout), layout.pipeline(), at.pp, layout.seq_len);
        InFlight& most = options.in_flight = in_flight(schedule(layout, at), options.chunks, options.document_mask);
        for (const std::vector<PipelineSchedule>& lists : layout.more_schedules) {
            most =
                most_of(most, in_flight(lists[static_cast<std::size_t>(at.pp)], options.chunks, options.document_mask));
        }
    }
    options.place = {layout.mesh(), at, layout.zero, layout.optimizer == OptimizerKind::muon};
    return options;
}

void Rank::gradients(int step) {
    if (choices_ != nullptr) choices_->begin_step(step);
    const int B = model_.options().B, replica = model_.options().place.at.dp, seq_len = layout_.seq_len;
    const std::vector<TokenRange> ranges = model_.token_ranges();
    auto read = [&](int i, const MicroBatch& to) {
        const auto inputs = to.tokens, targets = to.targets;
        const int first = (step - 1) * layout_.sequences() + (i * layout_.dp + replica) * B;
        const auto own = inputs.size() / static_cast<std::size_t>(B);
        read_starts(first, to.starts);
        for (int b = 0; b < B; b++) {
            const std::vector<int> tokens = sample(first + b, seq_len);
            std::vector<int> next(tokens.begin() + 1, tokens.end());
            for (int t = 0; t < seq_len; t++) {
                if (!layout_.has_target(first + b, t)) next[static_cast<std::size_t>(t)] = -1;
            }
            const auto at = static_cast<std::size_t>(b) * own;
            take_ranges(inputs.subspan(at, own), std::span(tokens).first(next.size()), ranges);
            take_ranges(targets.subspan(at, own), std::span<const int>(next), ranges);
            if (layout_.damage_targets) layout_.damage_targets(inputs.subspan(at, own), targets.subspan(at, own));
        }
    };
    const int targets =
        layout_.mean_of_local_means ? own_targets(step) * layout_.dp * layout_.cp : layout_.targets_of_step(step);
    step_->gradients(schedule_, read, 1.0f / static_cast<float>(targets));
}

Result Rank::train(int steps, const std::function<void()>& step_begins) {
    Result result;
    for (int step = 1; step <= steps; step++) {
        step_begins();
        gradients(step);
        if (step == 1) {
            for (int param = 0; param < model_.table().size(); param++) {
                result.gradients.push_back(gradient(param));
            }
        }
        step_->update(step, layout_.lr);
        const StepResult found = step_->result();
        result.losses.push_back(found.loss);
        result.norms.push_back(found.grad_norm);
    }
    return result;
}

std::vector<float> Rank::gradient(int param) {
    const RankLayout& place = model_.storage().place();
    const TensorSpec& tensor = model_.table()[param].tensor;
    if (model_.storage().find(param) == nullptr) {
        return from_stages(std::vector<float>(static_cast<std::size_t>(tensor.elements()), 0.0f));
    }
    const Gatherer gatherer(model_.storage(), groups_.stage, true, arena_, stream_.get());
    return with_gradient_type<floatX>(model_.gradients().type(), [&]<class G> {
        const auto values = gatherer.gather(model_.gradients().kept().as<G>(), param, everywhere, true);
        const bool says = place.mesh.pp == 1 ||
                          (group_rank(place.mesh, place.at, stage_axes) == 0 && !(tensor.tied && place.at.pp > 0));
        return from_stages(says ? std::vector<float>(values.begin(), values.end())
                                : std::vector<float>(values.size(), 0.0f));
    });
}

std::vector<std::vector<float>> Rank::parameters() {
    step_->wait_for_all_gather();
    std::vector<std::vector<float>> values;
    for (int param = 0; param < model_.table().size(); param++) {
        values.push_back(download_tensor(model_.parameters(), param, stream_.get()));
    }
    return values;
}

std::vector<Communicator*> Rank::communicators() const {
    const PipelineLinks& links = groups_.links;
    std::set<Communicator*> different{groups_.zero, groups_.stage,    groups_.all,           groups_.tensor,
                                      links.input,  links.output,     links.output_gradient, links.input_gradient,
                                      links.tied,   groups_.replicas, groups_.copy,          groups_.holders};
    different.erase(nullptr);
    return {different.begin(), different.end()};
}

void Rank::read_starts(int sequence, std::span<std::int32_t> starts) const {
    const std::vector<TokenRange> ranges = attended_ranges(model_.context(), layout_.seq_len);
    const std::vector<int> positions = token_positions(ranges);
    for (std::size_t at = 0; at < starts.size(); at += positions.size(), sequence++) {
        std::vector<std::int32_t> whole(static_cast<std::size_t>(layout_.seq_len));
        document_starts(std::span(whole),
                        [&](std::size_t t) { return layout_.begins_document(sequence, static_cast<int>(t)); });
        const auto own = starts.subspan(at, positions.size());
        take_ranges(own, std::span<const std::int32_t>(whole), ranges);
        if (layout_.damage_starts) layout_.damage_starts(own, positions);
    }
}

int Rank::own_targets(int step) const {
    const std::vector<int> positions = token_positions(model_.token_ranges());
    const int B = model_.options().B, replica = model_.options().place.at.dp;
    int count = 0;
    for (int i = 0; i < layout_.micro_batches * B; i++) {
        const int sequence = (step - 1) * layout_.sequences() + (i / B * layout_.dp + replica) * B + i % B;
        for (const int position : positions) count += layout_.has_target(sequence, position);
    }
    return std::max(count, 1);
}

std::vector<float> Rank::from_stages(const std::vector<float>& own) {
    if (layout_.pipe.stages == 1) return own;
    auto all = arena_.allocate<float>("test/from stages", own.size());
    all.upload(own, stream_.get());
    groups_.all->all_reduce(all.data(), all.size(), ReduceOp::sum, stream_.get());
    return all.download(stream_.get());
}

KnownChoices* Rank::know_choices(const MeshCoordinates& at) {
    if (layout_.choices == nullptr) return nullptr;
    const ContextCut cut{layout_.cp, layout_.ulysses, at.cp};
    auto known = std::make_unique<KnownChoices>(std::move(expert_ranks_), layout_.choices, layout_.choices->empty(),
                                                layout_.sequences(), layout_.dp, at.dp,
                                                token_positions(token_ranges(cut, layout_.seq_len)));
    KnownChoices* const all = known.get();
    expert_ranks_ = std::move(known);
    return all;
}

PipelineSchedule Rank::schedule(const Layout& layout, const MeshCoordinates& at) {
    if (layout.two_chunks) return all_forward_then_back(layout.micro_batches, true);
    return pipeline_schedules(layout.pipeline())[static_cast<std::size_t>(at.pp)];
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
    double squares = 0;
    for (std::size_t i = 0; i < b.size(); i++) {
        const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
        squares += difference * difference;
    }
    return std::sqrt(squares);
}

Tolerance distances(const Result& found, const Result& expected) {
    auto relative = [](float a, float b) {
        return std::abs(static_cast<double>(a) - static_cast<double>(b)) / std::abs(static_cast<double>(b));
    };
    Tolerance most{relative(found.losses[0], expected.losses[0]), 0, relative(found.norms[0], expected.norms[0]), 0};
    for (std::size_t i = 0; i < found.losses.size(); i++) {
        most.losses = std::max(most.losses, relative(found.losses[i], expected.losses[i]));
    }
    for (std::size_t i = 0; i < found.gradients.size(); i++) {
        const auto &a = found.gradients[i], &b = expected.gradients[i];
        most.gradients = std::max(most.gradients, distance(a, b) / length(b));
    }
    return most;
}

std::string difference(const Result& found, const Result& expected, const ParamTable& table, const Tolerance& allowed) {
    std::string story;
    auto check = [&](const std::string& what, double error, double limit) {
        if (!(error <= limit)) story += text(what, " is off by ", error, ", allowed ", limit, "\n");
    };
    auto relative = [](float a, float b) {
        return std::abs(static_cast<double>(a) - static_cast<double>(b)) / std::abs(static_cast<double>(b));
    };
    if (found.losses.size() != expected.losses.size()) return "another number of steps";
    for (std::size_t i = 0; i < found.losses.size(); i++) {
        const double limit = i == 0 ? allowed.first_loss : allowed.losses;
        check(text("loss of step ", i + 1), relative(found.losses[i], expected.losses[i]), limit);
    }
    check("first gradient norm", relative(found.norms[0], expected.norms[0]), allowed.norm);
    for (int param = 0; param < table.size(); param++) {
        const auto &a = found.gradients[static_cast<std::size_t>(param)],
                   &b = expected.gradients[static_cast<std::size_t>(param)];
        check("gradient of " + table[param].name, distance(a, b) / length(b), allowed.gradients);
    }
    return story;
}

bool on_layout(const Layout& layout, const std::function<void(Rank&, TestRank&)>& body) {
    INFO(layout.name());
    return on_ranks(layout.mesh(), [&](TestRank& me) {
        TrainingGroups groups =
            training_groups(me.world, layout.pipe.chunks > 1, layout.tied, model(layout).kv_copies(layout.tp));
        if (me.ranks() == 1) groups.zero = groups.stage = groups.all;
        Rank rank(layout, me.world.at(), groups, &me.world);
        body(rank, me);
    });
}

void require_same_everywhere(const Result& result, TestRank& me) {
    Hash64 hash;
    auto add = [&](const std::vector<float>& values) { hash.update(values.data(), values.size() * sizeof(float)); };
    add(result.losses);
    add(result.norms);
    for (const std::vector<float>& gradient : result.gradients) add(gradient);
    const DeviceBuffer<std::uint64_t> own = me.on_device(std::vector<std::uint64_t>{hash.digest()});
    const DeviceBuffer<std::uint64_t> all =
        me.arena.allocate<std::uint64_t>("test/hashes", static_cast<std::size_t>(me.ranks()));
    me.all.all_gather(all.data(), own.data(), 1, me.stream);
    for (std::uint64_t other : all.download(me.stream)) me.require(other == hash.digest(), "ranks do not agree");
}

void require_equal_copies(Rank& rank, TestRank& me) {
    Step& step = rank.step();
    step.wait_for_all_gather();
    CUDA_CHECK(cudaStreamSynchronize(step.stage().stream()));
    require_equal_copies(step.stage().parameters(), "parameters", me);
    for (const OptimizerState& state : step.optimizer().states()) {
        with_gradient_type<bf16>(state.type,
                                 [&]<class T> { require_equal_copies(state.values.as<T>(), state.name, me); });
    }
}

Result train_alone(int micro_batches, int steps, bool master_weights, bool tied, int heads, int layers) {
    Layout alone{1, 0, micro_batches, DType::fp32, master_weights ? MasterWeights::fp32 : MasterWeights::none};
    alone.tied = tied;
    alone.heads = heads;
    alone.layers = layers;
    return Rank(alone).train(steps);
}

void certify(const Layout& layout, const Result& expected) {
    const ParamTable table(model(layout));
    on_layout(layout, [&](Rank& rank, TestRank& me) {
        const Result found = rank.train(static_cast<int>(expected.losses.size()));
        require_same_everywhere(found, me);
        require_equal_copies(rank, me);
        const std::string story = difference(found, expected, table, tolerance_of(layout));
        me.require(story.empty(), story);
    });
}

}   // namespace certificate
