set -eu
cd "$1"
git() { command git -c safe.directory='*' -c core.hooksPath=/dev/null -c gc.auto=0 "$@"; }
top=$(git rev-parse --show-toplevel) || {
    echo "$1 is in no git repository; scrub_git comes after the step that makes it" >&2
    exit 1
}
cd "$top"
folder=$(git rev-parse --absolute-git-dir)
branch=$(git symbolic-ref --quiet HEAD || true)
for remote in $(git remote); do git remote remove "$remote"; done
git for-each-ref --format='%(refname)' | while read -r name; do
    [ "$name" = "$branch" ] && continue
    # A tag of a commit that is built upon stays: versions are made of it.
    case $name in refs/tags/*) git merge-base --is-ancestor "$name" HEAD 2>/dev/null && continue ;; esac
    git update-ref --no-deref -d "$name"
done
rm -rf "$folder/logs" "$folder/worktrees" "$folder/FETCH_HEAD" "$folder/ORIG_HEAD" \
    "$folder/MERGE_HEAD" "$folder/CHERRY_PICK_HEAD" "$folder/REVERT_HEAD" "$folder/AUTO_MERGE"
git repack -a -d -q
rm -f "$folder/objects/info/alternates" "$folder/objects/info/commit-graph"
rm -rf "$folder/objects/info/commit-graphs"
git prune --expire=now
left=$(git rev-list --all --not HEAD | head -n 1)
if [ -n "$left" ]; then
    echo "commit $left is left beside those that HEAD builds upon" >&2
    exit 1
fi
