// What became of changes, by what was changed; and the classes of harmless ones that the verifier
// refuses all the same.
#pragma once

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "program/mutation.h"

namespace penstock::test {

struct Tally {
  int tried = 0, refused_harmful = 0, accepted_harmless = 0, refused_harmless = 0;

  Tally& operator+=(const Tally& other) {
    tried += other.tried;
    refused_harmful += other.refused_harmful;
    accepted_harmless += other.accepted_harmless;
    refused_harmless += other.refused_harmless;
    return *this;
  }
};

// A rule of the verifier that is stricter than contents ask for, known by its words.
struct StrictRule {
  std::string_view name;
  std::string_view reason;
  std::vector<std::string_view> words;
  bool is_of_evaluations = false;  // alone
};

inline const std::vector<StrictRule>& strict_rules() {
  static const std::vector<StrictRule> rules = {
      {"no use",
       "a field that an op or a kind has no use for is not set: equal programs are equal",
       {"has no use for them",
        "belongs to no layer, unit, micro-batch or update",
        "it is of all micro-batches, and names one",
        "stages need the whole sum"}},
      {"too much",
       "an instruction lists what it uses and nothing else",
       {" values, not ",
        " values in place, not ",
        "only weights, gradients and state are changed in place",
        "which is no decision",
        "reads two versions of the weights",
        "averages weights, and replicas divide",
        "gives the whole sum"}},
      {"nobody's",
       "a value that nobody holds, is given or makes is a mistake",
       {"is never made", "the rank holds ", "is a share of what no layers share"}},
      {"order of lists",
       "units, layers and stages are listed in order and in range, whether or not they are used",
       {"out of order"}},
      {"carried elements",
       "they are told apart by their names, and are what cannot be part of an activation, or of "
       "what "
       "the batch brings",
       {"has no name of its own", "is read by no layer but the next", "comes with the batch"}},
      {"names a mode", "a forward that names a save mode keeps something", {"does not make s"}},
      {"order of sums",
       "a gradient is set, added to, reduced and read in this order, though sums are linear and "
       "nobody reads what is set later",
       {" lacks the part of ",
        "before it has parts, or after it was added up",
        " a second time",
        "are not reduced",
        "are not added up over the stages",
        " after it was reduced",
        ", which was not reduced",
        " after it was added up",
        "does not set "}},
      {"all layers",
       "layers that have no weights go backward before the update, too",
       {" is missing", "comes after the "}},
      {"an update is one",
       "nothing is done with weights of which some have moved, though layers may not share them",
       {"comes between the steps of one update", " updates and those of ", " updates and others "}},
      {"one version",
       "a backward that needs no weights, and the loss, work with those of the layer's forward",
       {"works with weights after "}},
      {"nothing there",
       "a replica that has nothing of a unit, and a rank without units, do as the others do",
       {"does not update ",
        "sets, and so loses, what is in",
        "updates what an earlier update has left in",
        "comes before the step; until then",
        "a second step",
        "does not read a",
        "does not read j",
        "does not read m",
        "does not read y",
        "it takes the rank's squares of this update",
        "replicas move apart, and not by their own gradients",
        "makes ready an average, and replicas move apart",
        "measures slices, and nothing is sharded",
        "of the replicas are not averaged"}},
      {"all squares",
       "squares are gathered from all ranks, though replicas that divide nothing have the same",
       {"it takes the ranks of all"}},
      {"replicas merge",
       "the state of layers is merged over replicas alone, though other stages have other layers",
       {"it takes the ranks of data"}},
      {"axes by name",
       "a group that names the pipeline's axis adds up over stages, though there may be one",
       {"no other stage has "}},
      {"alike slices",
       "all that a rank has of a unit has the same slices, though it could have more, and empty "
       "ones",
       {" has other slices than ",
        "is in slices; all of it is wanted",
        "leave a gap or overlap",
        " moves other slices of ",
        " has slices; it is there whole"}},
      {"frozen",
       "what is frozen is held, and divided by replicas, as weights that move are, though layers "
       "may "
       "see nothing but its copy",
       {"frozen unit "}},
      {"held once",
       "a rank holds one value of each kind of a unit, though nobody may use another",
       {" is held beside "}},
      {"shared",
       "stages have units that layers share, though buckets do not ask",
       {"its layers do not share its parameters"}},
      {"an evaluation",
       "one keeps and adds up nothing, though what nobody uses does no harm",
       {"an evaluation "},
       /*is_of_evaluations=*/true},
      {"one table",
       "an evaluation holds what its step does, though it needs weights alone",
       {"does not hold its weights, gradient and state", "the slices of unit "},
       /*is_of_evaluations=*/true},
      {"does something",
       "squares and copies are of all units of the rank, though nobody may use them",
       {"makes 0 values", "replicas keep no copies", "there are no replicas"}},
  };
  return rules;
}

// Nothing where the refusal is in none of the classes.
inline std::string_view class_of(const Mutation& mutation,
                                 const std::string& refusal,
                                 bool is_evaluation) {
  if (mutation.is_exchange_of_equals) {
    return "exchange of equals";  // two runs of one forward: values then name each other's lives
  }
  for (const StrictRule& rule : strict_rules()) {
    const bool applies = is_evaluation || !rule.is_of_evaluations;
    if (applies && std::any_of(rule.words.begin(), rule.words.end(), [&](std::string_view words) {
          return refusal.find(words) != std::string::npos;
        })) {
      return rule.name;
    }
  }
  return "";
}

class MutationTable {
 public:
  Tally& at(const Mutation& mutation) { return rows_[{mutation.subject, mutation.field}]; }
  const Tally* find(const std::string& subject, const std::string& field) const {
    const auto row = rows_.find({subject, field});
    return row == rows_.end() ? nullptr : &row->second;
  }
  void count_class(std::string_view name) { ++classes_[std::string(name)]; }
  const std::map<std::pair<std::string, std::string>, Tally>& rows() const { return rows_; }

  Tally sum() const {
    Tally all;
    for (const auto& [row, tally] : rows_) {
      all += tally;
    }
    return all;
  }

  void print() const {
    std::map<std::string, Tally> by_subject, by_field;
    std::printf("%-40s %7s %8s %8s %8s\n", "", "tried", "harmful", "harmless", "harmless");
    std::printf("%-40s %7s %8s %8s %8s\n", "", "", "refused", "accepted", "refused");
    for (const auto& [row, tally] : rows_) {
      print_line(row.first + ": " + row.second, tally);
      by_subject[row.first] += tally;
      by_field[row.second] += tally;
    }
    for (const auto& [title, lines] :
         {std::pair{"by what was changed", &by_subject}, std::pair{"by field", &by_field}}) {
      std::printf("%s\n", title);
      for (const auto& [name, tally] : *lines) {
        print_line("  " + name, tally);
      }
    }
    print_line("all", sum());
    std::printf("harmless and refused, by class\n");
    for (const auto& [name, count] : classes_) {
      std::printf("  %-38s %7d\n", name.c_str(), count);
    }
  }

 private:
  static void print_line(const std::string& name, const Tally& tally) {
    std::printf("%-40s %7d %8d %8d %8d\n",
                name.c_str(),
                tally.tried,
                tally.refused_harmful,
                tally.accepted_harmless,
                tally.refused_harmless);
  }

  std::map<std::pair<std::string, std::string>, Tally> rows_;  // by subject and field
  std::map<std::string, int> classes_;
};

}  // namespace penstock::test
