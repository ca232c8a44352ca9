#!/usr/bin/env bash
# Places the table file of the base and of the head, and writes the comment of what changes.
#
# Reads PYTHON, TABLES, ARGUMENTS, BASE, MAX_MOVE_GB and RUNNER_TEMP; writes paths, and whether the head could not be
# placed, to GITHUB_OUTPUT.
set -euo pipefail

work="$RUNNER_TEMP/evenshard-compare"
rm -rf "$work"
mkdir -p "$work/base"
comment="$work/comment.md"
# -I: no module of the checkout is imported, which anyone who opens a pull request can write.
evenshard() { "$PYTHON" -I -c 'import sys; from evenshard.cli import main; sys.exit(main(sys.argv[1:]))' "$@"; }

# Quotes and spaces as in a shell, but nothing is run or expanded.
mapfile -t arguments < <("$PYTHON" -I -c 'import shlex, sys; [print(word) for word in shlex.split(sys.argv[1])]' "$ARGUMENTS")

# place SIDE FOLDER MORE...: the tables as they are in a folder; what it says goes to SIDE.txt and SIDE.err.
place() {
  local side="$1" folder="$2"
  shift 2
  (cd "$folder" && evenshard place "$TABLES" "${arguments[@]}" "$@" -o "$work/$side.json") \
    > "$work/$side.txt" 2> "$work/$side.err"
}

fenced() { printf '\n````text\n'; cat "$1"; printf '````\n'; }

start() {
  "$PYTHON" -I -c 'import sys; from evenshard.report.comparisons import code, marker
print(marker(sys.argv[1]), f"### evenshard: {code(sys.argv[1])}", "", sep="\n")' "$TABLES" > "$comment"
}

if [ -z "$BASE" ]; then
  echo "::error::There is no base to compare with. Run it for a pull request, or name the input base."
  exit 1
fi
git cat-file -e "$BASE^{commit}" 2> /dev/null || git fetch --quiet --depth=1 origin "$BASE"
commit=$(git rev-parse --verify --quiet "$BASE^{commit}" || git rev-parse FETCH_HEAD)
git archive "$commit" | tar -x -C "$work/base"

base=none head=none failed=false
if [ -e "$work/base/$TABLES" ]; then
  if place base "$work/base"; then base=placed; else base=broken; fi
fi
if [ -e "$TABLES" ]; then
  near=()
  if [ "$base" = placed ]; then near=(--near "$work/base.json"); fi
  if [ "$base" = placed ] && [ -n "$MAX_MOVE_GB" ]; then near+=(--max-move-gb "$MAX_MOVE_GB"); fi
  if place head . "${near[@]}"; then head=placed; else head=broken failed=true; fi
fi

case "$base $head" in
  "placed placed")
    evenshard diff "$work/base.json" "$work/head.json" --markdown --title "$TABLES" > "$comment" ;;
  *" broken")
    start
    { echo "**The tables cannot be placed any more.**"; fenced "$work/head.err"; } >> "$comment" ;;
  "broken placed")
    start
    { echo "The tables of the base could not be placed, those of this change can:"; fenced "$work/base.err"
      printf '\n<details><summary>Their placement</summary>\n'; fenced "$work/head.txt"; printf '\n</details>\n'
    } >> "$comment" ;;
  "none placed")
    start
    { echo "The table file is new: there is nothing to compare with."
      printf '\n<details><summary>Its placement</summary>\n'; fenced "$work/head.txt"; printf '\n</details>\n'
    } >> "$comment" ;;
  "none none")
    start
    echo "There is no such file, neither before nor after. Correct the input \`tables\`." >> "$comment"
    failed=true ;;
  *" none")
    start
    echo "The table file is removed." >> "$comment" ;;
esac
if [ "$head" = placed ] && ! evenshard verify "$work/head.json" > "$work/verify.txt"; then
  failed=true
  { printf '\n**The placement has problems:**\n'; fenced "$work/verify.txt"; } >> "$comment"
fi
{
  echo "comment=$comment"
  echo "failed=$failed"
  echo "base=$([ "$base" = placed ] && echo "$work/base.json")"
  echo "head=$([ "$head" = placed ] && echo "$work/head.json")"
} >> "$GITHUB_OUTPUT"
