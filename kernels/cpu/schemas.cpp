// Reads the frequent part of JSON Schema into nodes: objects with named members, arrays of one kind of items, texts and
// other short values, references, `anyOf`. Its plain twin is lmprog/constraints/schema, which reads all the rest.
//
// A schema is first classed, by what it says. A plan then collects what of it has to be answered by the caller, and a
// build makes the nodes. Knows JSON and keywords; knows no patterns, numbers or formats.
#include "lmprog_schemas.h"

#include <memory>
#include <new>

#include "lmprog_json.h"
#include "lmprog_part_writer.h"

#define LMPROG_EXPORT extern "C" __attribute__((visibility("default")))

using lmprog::JsonKind;
using lmprog::JsonValue;
using lmprog::kEmptyNode;
using lmprog::kFailNode;
using lmprog::kNoLimit;

namespace {

constexpr int kDeepest = 100;       // schemas within schemas that are read at once
constexpr int kDeepestCompared = 4;  // members within members that tell two schemas apart
constexpr int32_t kMostCompared = 64; // branches of `oneOf`
constexpr int kMostReferences = 8;  // references to references that are followed at once
constexpr size_t kLongestInteger = 18, kLongestCount = 9;  // characters
constexpr int32_t kNone = -1;

enum Keyword : uint8_t {
    kOther, kType, kEnum, kConst, kProperties, kRequired, kAdditional, kItems, kMinItems, kMaxItems, kUnique, kAnyOf, kOneOf, kRef,
    kNumKeywords
};
constexpr std::string_view kNames[kNumKeywords] = {
    "", "type", "enum", "const", "properties", "required", "additionalProperties", "items", "minItems", "maxItems",
    "uniqueItems", "anyOf", "oneOf", "$ref"};
constexpr std::string_view kTypes[] = {"null", "boolean", "integer", "number", "string", "array", "object"};

enum class Class : uint8_t { kUnknown, kWanted, kNothing, kReference, kAnyOf, kValues, kObject, kArray };

struct Schema {
    Class of = Class::kUnknown;
    int32_t want = kNone;    // who answers: kWanted
    int32_t others = kNone;  // a want: the values of the types that are neither objects nor arrays
    int32_t target = kNone;  // of a kReference
    int32_t node = kNone;
    uint32_t planned = 0;    // by which plan
    bool is_open = false;
    int32_t hole = kNone;
};

// What a schema says, by keyword: the index of the value, or kNone.
struct Said {
    int32_t at[kNumKeywords];
    bool has_other = false, is_plain = true;  // plain: of scalars, so that its place does not matter
    int count = 0;
    bool only(std::initializer_list<Keyword> keywords) const {
        int known = 0;
        for (const Keyword one : keywords) known += at[one] != kNone;
        return !has_other && known == count;
    }
};

bool is_plain_name(std::string_view name) {
    return std::all_of(name.begin(), name.end(), [](char one) { return one >= 0x20 && one <= '~' && one != '"' && one != '\\'; });
}

}  // namespace

struct lmprog_schemas_style {
    std::unordered_map<std::string, Keyword> keywords;
    std::string comma, colon;
};

struct lmprog_schemas {
  public:
    lmprog_schemas(std::string_view text, const lmprog_schemas_style& style) : json_(text), style_(style) {
        if (!json_.is_refused()) schemas_.resize(json_.size());
    }

    bool is_read() const {
        if (json_.is_refused() || !is_schema(0)) return false;
        for (int32_t at = 1; at < static_cast<int32_t>(json_.size()); at++)
            if (json_[at].kind == JsonKind::kString && json_[at].key == "$id" && json_[at].parent != 0) return false;
        return true;
    }

    int32_t find(std::string_view path) const {
        return path.empty() || path[0] != '#' ? kNone : followed(path.substr(1));
    }

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

    std::string wanted;
    lmprog::PartWriter writer;

  private:
    struct Want {
        std::string said;
        int32_t node = kNone;
        uint32_t planned = 0;
    };

    Schema& known(int32_t at) { return schemas_[static_cast<size_t>(at)]; }
    bool is_object(int32_t at) const { return json_[at].kind == JsonKind::kObject; }
    bool is_bool(int32_t at) const { return json_[at].kind == JsonKind::kTrue || json_[at].kind == JsonKind::kFalse; }
    bool is_schema(int32_t at) const { return is_object(at) || is_bool(at); }
    template <class Body> void each(int32_t of, Body body) const {
        for (int32_t at = of + 1; at < json_[of].next; at = json_[at].next) body(at);
    }
    template <class Test> bool all(int32_t of, Test test) const {
        for (int32_t at = of + 1; at < json_[of].next; at = json_[at].next)
            if (!test(at)) return false;
        return true;
    }

    // ---- references and paths

    // The schema at a pointer, or kNone.
    int32_t followed(std::string_view pointer) const {
        int32_t at = 0;
        while (!pointer.empty()) {
            if (pointer[0] != '/') return kNone;
            const size_t end = std::min(pointer.find('/', 1), pointer.size());
            at = stepped(at, pointer.substr(1, end - 1));
            if (at == kNone) return kNone;
            pointer.remove_prefix(end);
        }
        return is_schema(at) ? at : kNone;
    }
    int32_t stepped(int32_t at, std::string_view raw) const {
        std::string step;
        for (size_t place = 0; place < raw.size(); place++) {
            const bool is_escape = raw[place] == '~' && place + 1 < raw.size() && (raw[place + 1] == '0' || raw[place + 1] == '1');
            step += is_escape ? (raw[++place] == '0' ? '~' : '/') : raw[place];
        }
        if (is_object(at)) return json_.member(at, step);
        if (json_[at].kind != JsonKind::kArray || step.empty() || step.size() > kLongestCount) return kNone;
        int64_t left = 0;
        for (const char digit : step) {
            if (digit < '0' || digit > '9') return kNone;
            left = 10 * left + digit - '0';
        }
        for (int32_t item = at + 1; item < json_[at].next; item = json_[item].next)
            if (left-- == 0) return item;
        return kNone;
    }
    std::string path(int32_t at) const {
        if (!at) return "#";
        const int32_t parent = json_[at].parent;
        if (json_[parent].kind == JsonKind::kArray) {
            int64_t number = 0;
            for (int32_t item = parent + 1; item < at; item = json_[item].next) number++;
            return path(parent) + "/" + std::to_string(number);
        }
        std::string step;
        for (const char letter : json_[at].key) {
            if (letter == '~') step += "~0";
            else if (letter == '/') step += "~1";
            else step += letter;
        }
        return path(parent) + "/" + step;
    }

    // ---- wants

    int32_t want(std::string said) {
        const auto [found, is_new] = want_numbers_.try_emplace(said, static_cast<int32_t>(wants_.size()));
        if (is_new) {
            wants_.emplace_back();
            wants_.back().said = std::move(said);
        }
        return found->second;
    }
    int32_t want_content(const std::string& json) { return want("c" + json); }
    int32_t want_any() { return want_content("{}"); }
    int32_t want_characters() { return want("s"); }
    void ask(int32_t number) {
        Want& one = wants_[static_cast<size_t>(number)];
        if (one.node != kNone || one.planned == plan_) return;
        one.planned = plan_;
        wanted += std::to_string(number) + ' ' + one.said + '\0';
    }
    int32_t answered(int32_t number) const { return wants_[static_cast<size_t>(number)].node; }

    // ---- classes

    Said said(int32_t at) const {
        Said out;
        std::fill(std::begin(out.at), std::end(out.at), kNone);
        each(at, [&](int32_t member) {
            key_.assign(json_[member].key);
            const auto found = style_.keywords.find(key_);
            if (found == style_.keywords.end()) return;
            out.count++;
            if (found->second == kOther) out.has_other = true;
            else out.at[found->second] = member;
            const JsonKind kind = json_[member].kind;
            const bool is_list = kind == JsonKind::kArray && found->second == kType;
            out.is_plain &= kind != JsonKind::kObject && (kind != JsonKind::kArray || is_list) && key_[0] != '$';
        });
        out.is_plain &= out.at[kEnum] == kNone && out.at[kConst] == kNone && out.at[kUnique] == kNone;
        return out;
    }

    Class classed(int32_t at) {
        Schema& one = known(at);
        if (one.of != Class::kUnknown) return one.of;
        one.of = class_of(at, one);
        if (one.of == Class::kWanted && one.want == kNone) one.want = want("p" + path(at));
        return one.of;
    }

    Class class_of(int32_t at, Schema& one) {
        if (json_[at].kind == JsonKind::kFalse) return Class::kNothing;
        if (json_[at].kind == JsonKind::kTrue) {
            one.want = want_any();
            return Class::kWanted;
        }
        const Said says = said(at);
        if (says.is_plain) {
            one.want = want_content(content(at));
            return Class::kWanted;
        }
        if (says.at[kRef] != kNone) return referring(says, one);
        if (says.only({kAnyOf})) return any_of(says.at[kAnyOf]);
        if (says.only({kOneOf})) return one_of(says.at[kOneOf]);
        if (says.only({kType, kEnum}) || says.only({kType, kConst})) return values(says);
        if (says.only({kType, kProperties, kRequired, kAdditional})) return object(says, one);
        if (says.only({kType, kItems, kMinItems, kMaxItems, kUnique})) return array(says, one);
        return Class::kWanted;
    }

    // A schema of scalars without what says nothing.
    std::string content(int32_t at) const {
        std::string out = "{";
        each(at, [&](int32_t member) {
            key_.assign(json_[member].key);
            if (!style_.keywords.count(key_)) return;
            if (out.size() > 1) out += ',';
            out += lmprog::json_string(key_) + ":";
            out += json_.raw(json_[member]);
        });
        return out + "}";
    }

    Class referring(const Said& says, Schema& one) {
        const JsonValue& reference = json_[says.at[kRef]];
        if (!says.only({kRef}) || reference.kind != JsonKind::kString) return Class::kWanted;
        if (reference.text.substr(0, 1) != "#" || reference.text.find('%') != std::string_view::npos) return Class::kWanted;
        one.target = followed(reference.text.substr(1));
        return one.target == kNone ? Class::kWanted : Class::kReference;
    }

    // What a schema refers to that is a reference, or the schema; kNone where references lead nowhere.
    int32_t target_of(int32_t at) {
        for (int count = 0; classed(at) == Class::kReference; count++) {
            if (count == kMostReferences) return kNone;
            at = known(at).target;
        }
        return at;
    }

    Class any_of(int32_t list) {
        if (json_[list].kind != JsonKind::kArray || !json_[list].count) return Class::kWanted;
        return all(list, [&](int32_t branch) { return is_schema(branch); }) ? Class::kAnyOf : Class::kWanted;
    }

    // As `anyOf`, where no value can be of two branches.
    Class one_of(int32_t list) {
        if (any_of(list) == Class::kWanted || json_[list].count > kMostCompared) return Class::kWanted;
        std::vector<int32_t> branches;
        each(list, [&](int32_t branch) { branches.push_back(target_of(branch)); });
        for (size_t one = 0; one < branches.size(); one++)
            for (size_t other = one + 1; other < branches.size(); other++)
                if (!exclude_each_other(branches[one], branches[other], 0)) return Class::kWanted;
        return Class::kAnyOf;
    }

    // The twin of disjoint.py, except that it compares fewer values.
    bool exclude_each_other(int32_t left, int32_t right, int depth) {
        if (left == kNone || right == kNone) return false;
        if (!is_object(left) || !is_object(right))
            return json_[left].kind == JsonKind::kFalse || json_[right].kind == JsonKind::kFalse;
        const Said one = said(left), other = said(right);
        const uint32_t types = types_of(one.at[kType]), other_types = types_of(other.at[kType]);
        if (types && other_types && !(types & other_types)) return true;
        if (has_values(one) && has_values(other)) {
            return all_values(one, [&](int32_t value) {
                return all_values(other, [&](int32_t another) { return surely_differ(value, another); });
            });
        }
        const uint32_t object = type_bit("object");
        if (depth == kDeepestCompared || (types != object && other_types != object)) return false;
        for (const Said* each_one : {&one, &other})
            if (each_one->at[kProperties] == kNone || each_one->at[kRequired] == kNone) return false;
        if (!is_object(one.at[kProperties]) || !is_object(other.at[kProperties])) return false;
        return !all(one.at[kRequired], [&](int32_t name) {
            const std::string_view key = json_[name].text;
            const bool in_both = json_[name].kind == JsonKind::kString && !all(other.at[kRequired], [&](int32_t at) {
                return json_[at].kind != JsonKind::kString || json_[at].text != key;
            });
            if (!in_both) return true;
            const int32_t mine = json_.member(one.at[kProperties], key), its = json_.member(other.at[kProperties], key);
            if (mine == kNone || its == kNone || !is_schema(mine) || !is_schema(its)) return true;
            return !exclude_each_other(target_of(mine), target_of(its), depth + 1);
        });
    }
    // A bit for each of the types; 0 where none or something else is said.
    uint32_t types_of(int32_t type) const {
        if (type == kNone) return 0;
        if (json_[type].kind == JsonKind::kString) return type_bit(json_[type].text);
        uint32_t out = 0;
        const bool is_known = json_[type].kind == JsonKind::kArray && all(type, [&](int32_t item) {
            const uint32_t bit = json_[item].kind == JsonKind::kString ? type_bit(json_[item].text) : 0;
            out |= bit;
            return bit != 0;
        });
        return is_known ? out : 0;
    }
    static uint32_t type_bit(std::string_view name) {
        if (name == "integer") name = "number";
        const auto* found = std::find(std::begin(kTypes), std::end(kTypes), name);
        return found == std::end(kTypes) ? 0 : 1u << (found - std::begin(kTypes));
    }
    bool has_values(const Said& says) const {
        const int32_t list = says.at[kEnum];
        return says.at[kConst] != kNone || (list != kNone && json_[list].kind == JsonKind::kArray);
    }
    template <class Test> bool all_values(const Said& says, Test test) const {
        return says.at[kConst] != kNone ? test(says.at[kConst]) : all(says.at[kEnum], test);
    }
    bool surely_differ(int32_t left, int32_t right) const {
        const JsonValue &one = json_[left], &other = json_[right];
        if (one.kind != other.kind) return true;
        if (one.kind == JsonKind::kString) return one.text != other.text;
        return one.kind == JsonKind::kNumber && is_short(left) && is_short(right) && json_.raw(one) != json_.raw(other);
    }

    Class values(const Said& says) {
        if (says.at[kType] != kNone && json_[says.at[kType]].kind != JsonKind::kString) return Class::kWanted;
        if (says.at[kType] != kNone && !is_type(json_[says.at[kType]].text)) return Class::kWanted;
        if (says.at[kConst] != kNone) return is_short(says.at[kConst]) ? Class::kValues : Class::kWanted;
        const int32_t list = says.at[kEnum];
        if (list == kNone || json_[list].kind != JsonKind::kArray) return Class::kWanted;
        return all(list, [&](int32_t value) { return is_short(value); }) ? Class::kValues : Class::kWanted;
    }
    // Whether a value has one plain spelling.
    bool is_short(int32_t at) const {
        const JsonValue& value = json_[at];
        if (value.kind != JsonKind::kNumber) return value.kind != JsonKind::kArray && value.kind != JsonKind::kObject;
        const std::string_view raw = json_.raw(value);
        return raw.size() <= kLongestInteger && raw.find_first_of(".eE") == std::string_view::npos && raw != "-0";
    }
    static bool is_type(std::string_view name) {
        return std::find(std::begin(kTypes), std::end(kTypes), name) != std::end(kTypes);
    }

    // Whether `type` (kNone: all) takes what `wanted` names. Writes the want of the other types, if there are any.
    bool takes_type(int32_t type, std::string_view wanted, Schema& one) {
        std::vector<std::string_view> names;
        if (type == kNone) {
            names = {"null", "boolean", "number", "string", "array", "object"};
        } else if (json_[type].kind == JsonKind::kString) {
            names = {json_[type].text};
        } else if (json_[type].kind == JsonKind::kArray && all(type, [&](int32_t item) { return json_[item].kind == JsonKind::kString; })) {
            each(type, [&](int32_t item) { names.push_back(json_[item].text); });
        }
        if (!std::all_of(names.begin(), names.end(), is_type)) return false;
        bool is_taken = false;
        std::string others;
        for (const std::string_view name : names) {
            if (name == wanted) is_taken = true;
            else others += std::string(others.empty() ? "" : ",") + '"' + std::string(name) + '"';
        }
        if (is_taken && !others.empty()) one.others = want_content("{\"type\":[" + others + "]}");
        return is_taken;
    }

    Class object(const Said& says, Schema& one) {
        const int32_t named = says.at[kProperties], required = says.at[kRequired], rest = says.at[kAdditional];
        if (named != kNone && (!is_object(named) || !all(named, [&](int32_t at) { return is_schema(at); }))) return Class::kWanted;
        if (required != kNone) {
            if (json_[required].kind != JsonKind::kArray) return Class::kWanted;
            if (!all(required, [&](int32_t at) { return json_[at].kind == JsonKind::kString; })) return Class::kWanted;
        }
        if (rest != kNone && !is_schema(rest)) return Class::kWanted;
        if (rest == kNone || json_[rest].kind != JsonKind::kFalse) {  // other names are all but these
            bool is_plain = named == kNone || all(named, [&](int32_t at) { return is_plain_name(json_[at].key); });
            is_plain &= required == kNone || all(required, [&](int32_t at) { return is_plain_name(json_[at].text); });
            if (!is_plain) return Class::kWanted;
        }
        return takes_type(says.at[kType], "object", one) ? Class::kObject : Class::kWanted;
    }

    Class array(const Said& says, Schema& one) {
        if (says.at[kItems] != kNone && !is_schema(says.at[kItems])) return Class::kWanted;
        if (says.at[kUnique] != kNone && json_[says.at[kUnique]].kind != JsonKind::kFalse) return Class::kWanted;
        for (const Keyword bound : {kMinItems, kMaxItems}) {
            if (says.at[bound] == kNone) continue;
            const std::string_view raw = json_.raw(json_[says.at[bound]]);
            if (raw.size() > kLongestCount || raw.find_first_not_of("0123456789") != std::string_view::npos) return Class::kWanted;
        }
        return takes_type(says.at[kType], "array", one) ? Class::kArray : Class::kWanted;
    }

    static int32_t branches_of(const Said& says) { return says.at[says.at[kAnyOf] != kNone ? kAnyOf : kOneOf]; }

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
        ways.push_back(name == "string" ? writer.text(lmprog::json_string(value.text)) : writer.text(json_.raw(value)));
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
            const int32_t name_node = writer.text(lmprog::json_string(name) + style_.colon);
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

    lmprog::JsonText json_;
    const lmprog_schemas_style& style_;
    std::vector<Schema> schemas_;  // by the place of their value
    std::deque<Want> wants_;
    std::unordered_map<std::string, int32_t> want_numbers_;
    uint32_t plan_ = 0;
    std::vector<int32_t> alternatives_;  // the `anyOf`s that are being planned, with nothing in between
    mutable std::string key_;
};

LMPROG_EXPORT lmprog_schemas_style* lmprog_schemas_style_new(const char* keywords, int64_t length, const char* comma,
                                                             const char* colon) try {
    auto* made = new lmprog_schemas_style{{}, comma, colon};
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
    const lmprog::PartWriter& made = document->writer;
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
