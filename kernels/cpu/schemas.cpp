// Reads the frequent part of JSON Schema into nodes: objects with named members, arrays of one kind of items, texts and
// other short values, references, `anyOf`, `oneOf` of branches that plainly exclude each other. Its plain twin is
// lmprog/constraints/schema, which reads all the rest.
//
// A schema is first classed, by what it says (lmprog_schema_classes.h). A plan then collects what of it has to be answered
// by the caller, and a build makes the nodes. Knows JSON and keywords; knows no patterns, numbers or formats.
#include "lmprog_schemas.h"

#include <memory>
#include <new>

#include "lmprog_part_writer.h"
#include "lmprog_schema_classes.h"

#define LMPROG_EXPORT extern "C" __attribute__((visibility("default")))

using namespace lmprog;

namespace {

constexpr int kDeepest = 100;  // schemas within schemas that are read at once

}  // namespace

struct lmprog_schemas_style : SchemaStyle {};

struct lmprog_schemas : SchemaClasses {
  public:
    using SchemaClasses::SchemaClasses;

    // False where the schema itself is the caller's to read.
    bool plan(int32_t schema) {
        wanted.clear();
        plan_++;
        return gather(schema, 0) != Class::kWanted;
    }

    void answer(int64_t number, int32_t node) { wants_[static_cast<size_t>(number)].node = node; }

    int32_t build(int32_t schema, int32_t first_node, int32_t first_leaf) {
        writer.begin(first_node, first_leaf);
        return node_of(schema);
    }

    PartWriter writer;

  private:
    // ---- plans

    // Asks for all that is not known yet of a schema and of those within it.
    Class gather(int32_t at, int depth) {
        at = settled(at, depth);
        Schema& one = known(at);
        if (one.node != kNone || one.planned == plan_) return one.of;
        one.planned = plan_;
        if (one.others != kNone) ask(one.others);
        if (one.of == Class::kAnyOf) {
            alternatives_.push_back(at);
            each(branches_of(said(at)), [&](int32_t branch) { gather(branch, depth + 1); });
            alternatives_.pop_back();
        } else if (one.of == Class::kObject || one.of == Class::kArray) {
            std::vector<int32_t> outer;
            outer.swap(alternatives_);
            if (one.of == Class::kObject) gather_object(said(at), depth);
            else gather_or_any(said(at).at[kItems], depth);
            outer.swap(alternatives_);
        }
        if (one.of == Class::kWanted) ask(one.want);  // perhaps since one of its own alternatives was planned
        return one.of;
    }
    void gather_or_any(int32_t at, int depth) {
        if (at == kNone) ask(want_any());
        else gather(at, depth + 1);
    }
    // The schema that stands for one: what it refers to. One that is nested too deeply, refers to nothing but itself or
    // has itself as an alternative becomes the caller's.
    int32_t settled(int32_t at, int depth) {
        const int32_t target = target_of(at);
        if (target == kNone || depth > kDeepest) return given_up(at);
        classed(target);
        const bool is_own = std::find(alternatives_.begin(), alternatives_.end(), target) != alternatives_.end();
        return is_own ? given_up(target) : target;
    }
    int32_t given_up(int32_t at) {
        Schema& one = known(at);
        if (one.of != Class::kWanted) {
            one.of = Class::kWanted;
            one.want = want("p" + path(at));
            one.others = kNone;
        }
        return at;
    }

    void gather_object(const Said& says, int depth) {
        const int32_t named = says.at[kProperties], required = says.at[kRequired], rest = says.at[kAdditional];
        if (named != kNone) each(named, [&](int32_t at) { gather(at, depth + 1); });
        const bool is_closed = rest != kNone && json_[rest].kind == JsonKind::kFalse;
        if (is_closed) return;
        gather_or_any(rest, depth);
        const bool has_names = (named != kNone && json_[named].count) || (required != kNone && json_[required].count);
        if (!has_names) ask(want_characters());
    }

    // ---- builds

    int32_t node_of(int32_t at) {
        at = target_of(at);
        classed(at);
        Schema& one = known(at);
        if (one.node != kNone) return one.node;
        if (one.of == Class::kWanted) return answered(one.want);
        if (one.is_open) return one.hole != kNone ? one.hole : one.hole = writer.hole();
        one.is_open = true;
        int32_t made = made_of(at, one.of);
        if (one.others != kNone) made = writer.alt({answered(one.others), made});
        one.is_open = false;
        if (one.hole != kNone) writer.fill(one.hole, made);
        return one.node = made;
    }
    int32_t made_of(int32_t at, Class of) {
        if (of == Class::kNothing) return kFailNode;
        const Said says = said(at);
        if (of == Class::kObject) return object_node(says);
        if (of == Class::kArray) return array_node(says);
        std::vector<int32_t> ways;
        if (of == Class::kAnyOf) each(branches_of(says), [&](int32_t branch) { ways.push_back(node_of(branch)); });
        else if (says.at[kConst] != kNone) add_value(says.at[kConst], says.at[kType], ways);
        else each(says.at[kEnum], [&](int32_t value) { add_value(value, says.at[kType], ways); });
        return writer.alt(ways);
    }

    void add_value(int32_t at, int32_t type, std::vector<int32_t>& ways) {
        const JsonValue& value = json_[at];
        const std::string_view name = value.kind == JsonKind::kString ? "string"
                                      : value.kind == JsonKind::kNull ? "null"
                                      : is_bool(at)                   ? "boolean"
                                                                      : "number";
        const std::string_view wanted = type == kNone ? name : json_[type].text;
        if (wanted != name && !(name == "number" && wanted == "integer")) return;
        ways.push_back(name == "string" ? writer.text(json_string(value.text)) : writer.text(json_.raw(value)));
    }

    int32_t bracketed(const char* brackets, int32_t content, bool may_be_empty) {
        const int32_t open = writer.text({brackets, 1}), close = writer.text({brackets + 1, 1});
        const int32_t full = writer.seq({open, content, close});
        return may_be_empty ? writer.alt({full, writer.seq({open, close})}) : full;
    }

    struct Member {
        std::string_view name;
        int32_t name_node, value;
        bool is_required;
    };

    int32_t object_node(const Said& says) {
        const int32_t named = says.at[kProperties], required = says.at[kRequired], rest = says.at[kAdditional];
        std::unordered_set<std::string_view> wanted;
        if (required != kNone) each(required, [&](int32_t at) { wanted.insert(json_[at].text); });
        const bool may_be_empty = wanted.empty();
        const bool is_closed = rest != kNone && json_[rest].kind == JsonKind::kFalse;
        const auto other = [&] { return rest == kNone ? answered(want_any()) : node_of(rest); };
        std::vector<Member> members;
        const auto add = [&](std::string_view name, int32_t value, bool is_required) {
            const int32_t name_node = writer.text(json_string(name) + style_.colon);
            members.push_back({name, name_node, value, is_required});
        };
        if (named != kNone) {
            each(named, [&](int32_t at) {
                const bool is_required = wanted.erase(json_[at].key) > 0;
                add(json_[at].key, node_of(at), is_required);
            });
        }
        if (!wanted.empty()) {
            each(required, [&](int32_t at) {
                if (wanted.erase(json_[at].text)) add(json_[at].text, other(), true);
            });
        }
        const int32_t further = is_closed ? kFailNode : writer.seq({other_names(members), writer.text(style_.colon), other()});
        return bracketed("{}", declared(members, further), may_be_empty);
    }
    int32_t other_names(const std::vector<Member>& members) {
        std::vector<std::string_view> names;
        for (const Member& one : members) names.push_back(one.name);
        const int32_t quote = writer.text("\"");
        return writer.seq({quote, names.empty() ? answered(want_characters()) : writer.all_but(names), quote});
    }
    // Works backwards: the node behind a previous member, and the node at the start.
    int32_t declared(const std::vector<Member>& members, int32_t further) {
        const int32_t comma = writer.text(style_.comma);
        int32_t following = writer.repeat(writer.seq({comma, further}), 0, kNoLimit);
        int32_t first = writer.seq({further, following});
        const auto begin = std::find_if(members.begin(), members.end(), [](const Member& one) { return one.is_required; });
        const auto begin_at = begin - members.begin();  // behind the first required one no object begins
        for (auto number = static_cast<std::ptrdiff_t>(members.size()) - 1; number >= 0; number--) {
            const Member& one = members[static_cast<size_t>(number)];
            if (number <= begin_at) {
                const int32_t begun = writer.seq({one.name_node, one.value, following});
                first = one.is_required ? begun : writer.alt({begun, first});
            }
            if (number == 0) break;
            const int32_t more = writer.seq({comma, one.name_node, one.value, following});
            following = one.is_required ? more : writer.alt({more, following});
        }
        return first;
    }

    int32_t array_node(const Said& says) {
        const int32_t items = says.at[kItems];
        const int64_t low = count(says.at[kMinItems], 0), high = count(says.at[kMaxItems], kNoLimit);
        if (high != kNoLimit && high < low) return kFailNode;
        if (high == 0) return bracketed("[]", kFailNode, true);
        const int32_t item = items == kNone ? answered(want_any()) : node_of(items);
        const int32_t further = writer.seq({writer.text(style_.comma), item});
        const auto most = static_cast<int32_t>(high == kNoLimit ? kNoLimit : high - 1);
        const int32_t more = writer.repeat(further, static_cast<int32_t>(std::max<int64_t>(low - 1, 0)), most);
        return bracketed("[]", writer.seq({item, more}), low == 0);
    }
    int64_t count(int32_t at, int64_t otherwise) const {
        return at == kNone ? otherwise : std::stoll(std::string(json_.raw(json_[at])));
    }

    std::vector<int32_t> alternatives_;  // the `anyOf`s that are being planned, with nothing in between
};

LMPROG_EXPORT lmprog_schemas_style* lmprog_schemas_style_new(const char* keywords, int64_t length, const char* comma,
                                                             const char* colon) try {
    auto* made = new lmprog_schemas_style{{{}, comma, colon}};
    for (const char* at = keywords; at < keywords + length; at += std::string_view(at).size() + 1) {
        const auto* found = std::find(std::begin(kNames) + 1, std::end(kNames), std::string_view(at));
        made->keywords.emplace(at, found == std::end(kNames) ? kOther : static_cast<Keyword>(found - kNames));
    }
    return made;
} catch (const std::bad_alloc&) {
    return nullptr;
}

LMPROG_EXPORT void lmprog_schemas_style_free(lmprog_schemas_style* style) { delete style; }

LMPROG_EXPORT lmprog_schemas* lmprog_schemas_new(const char* text, int64_t length, const lmprog_schemas_style* style) try {
    auto made = std::make_unique<lmprog_schemas>(std::string_view(text, static_cast<size_t>(length)), *style);
    return made->is_read() ? made.release() : nullptr;
} catch (const std::bad_alloc&) {
    return nullptr;  // the other reader finds that out too
}

LMPROG_EXPORT void lmprog_schemas_free(lmprog_schemas* document) { delete document; }

LMPROG_EXPORT int64_t lmprog_schemas_find(const lmprog_schemas* document, const char* path, int64_t length) try {
    const int32_t found = document->find({path, static_cast<size_t>(length)});
    return found == kNone ? LMPROG_SCHEMAS_NOT_READ : found;
} catch (const std::bad_alloc&) {
    return LMPROG_SCHEMAS_NOT_READ;
}

LMPROG_EXPORT int64_t lmprog_schemas_plan(lmprog_schemas* document, int64_t schema, lmprog_schemas_wanted* wanted) try {
    if (!document->plan(static_cast<int32_t>(schema))) return LMPROG_SCHEMAS_NOT_READ;
    *wanted = {document->wanted.data(), static_cast<int64_t>(document->wanted.size())};
    return 0;
} catch (const std::bad_alloc&) {
    return LMPROG_SCHEMAS_MEMORY;
}

LMPROG_EXPORT void lmprog_schemas_answer(lmprog_schemas* document, int64_t number, int32_t node) {
    document->answer(number, node);
}

LMPROG_EXPORT int64_t lmprog_schemas_build(lmprog_schemas* document, int64_t schema, int32_t first_node,
                                           int32_t first_leaf, lmprog_schemas_nodes* nodes) try {
    const int32_t root = document->build(static_cast<int32_t>(schema), first_node, first_leaf);
    const PartWriter& made = document->writer;
    *nodes = {made.kinds.data(),
              made.num_args.data(),
              made.args.data(),
              made.leaf_kinds.data(),
              made.leaf_sizes.data(),
              reinterpret_cast<const uint8_t*>(made.texts.data()),
              static_cast<int64_t>(made.kinds.size()),
              static_cast<int64_t>(made.args.size()),
              static_cast<int64_t>(made.leaf_kinds.size()),
              static_cast<int64_t>(made.texts.size()),
              root,
              made.is_recursive};
    return 0;
} catch (const std::bad_alloc&) {
    return LMPROG_SCHEMAS_MEMORY;
}
