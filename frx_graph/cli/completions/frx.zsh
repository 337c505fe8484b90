#compdef frx frx-graph
# Completion of frx for zsh, printed by `frx completion zsh`.
_frx() {
    local -a words_typed=("${words[@]}")
    local command=frx word words=
    for word in "${(@)words_typed[2,CURRENT-1]}"; do
        [ "$word" = -- ] && { _files; return; }
        case "$command $word" in
            frx\ init|frx\ collect|frx\ tune|frx\ advise|frx\ fix|frx\ analyze|frx\ profile|frx\ explain|frx\ reconcile|frx\ compare|frx\ bench|frx\ fleet|frx\ trial|frx\ ledger|frx\ ledger\ list|frx\ ledger\ show|frx\ ledger\ rollback|frx\ ledger\ export|frx\ ledger\ verify|frx\ ledger\ upgrade|frx\ serve|frx\ rules|frx\ probe|frx\ doctor|frx\ smoke-test|frx\ ncu-command|frx\ completion) command="$command $word" ;;
        esac
    done
    case "$command ${words_typed[CURRENT-1]}" in
        frx\ tune\ --engine) words='local ray' ;;
        frx\ advise\ --format) words='text json html md sarif github' ;;
        frx\ fix\ --format) words='text json github' ;;
        frx\ analyze\ --format) words='text json html md sarif github' ;;
        frx\ analyze\ --scope) words='run steady_state auto' ;;
        frx\ explain\ --scope) words='run steady_state auto' ;;
        frx\ fleet\ --engine) words='local ray' ;;
        frx\ trial\ --engine) words='local ray' ;;
        frx\ trial\ --format) words='text json' ;;
        frx\ ledger\ list\ --format) words='text json' ;;
        frx\ ledger\ show\ --format) words='text json' ;;
        frx\ rules\ --format) words='text json' ;;
        frx\ probe\ --device) words='cpu cuda' ;;
        frx\ probe\ --format) words='text json' ;;
        frx\ doctor\ --format) words='text json' ;;
    esac
    if [ -z "$words" ]; then
        case "$command" in
        frx) words='init collect tune advise fix analyze profile explain reconcile compare bench fleet trial ledger serve rules probe doctor smoke-test ncu-command completion --version --help' ;;
        frx\ init) words='--patch --unpatch --yes -y --json --quiet -q --help' ;;
        frx\ collect) words='--name --out --run-id --artifact-dir --no-profiler-import --sample-interval-ms --config --explain --no-zip --json --quiet -q --help' ;;
        frx\ tune) words='--name --out --max-trials --safe --no-safe --allow-risky-actions --time-budget-s --warmup-steps --measure-steps --repeat-count --race --no-race --race-promote-count --race-warmup-steps --race-measure-steps --bottleneck --family --candidate --min-speedup --quality-checks --no-quality-checks --max-final-loss-regression --max-loss-divergence --output-abs-tolerance --allow-nonfinite-loss --sample-interval-ms --one-at-a-time --ignore-load --engine --address --working-dir --resume --json --quiet -q --help' ;;
        frx\ advise) words='--train --no-train --dtype --device --for --inner --observe --no-observe --measure --no-measure --evidence --format --json --output -o --select --ignore --baseline --write-baseline --exit-zero --no-exit-zero --top --quiet -q --help' ;;
        frx\ fix) words='--apply --diff --patch --prove --no-prove --unsafe-fixes --select --ignore --train --no-train --dtype --device --inner --allow-dirty --policy --ignore-load --ledger --format --json --quiet -q --help' ;;
        frx\ analyze) words='--trace --model --format --json --output-json --output -o --select --ignore --exit-zero --top --scope --gpu-model --before --after --before-source --before-ptx --before-ncu --after-source --after-ptx --after-ncu --before-label --after-label --quiet -q --help' ;;
        frx\ profile) words='--ncu --ptx --preset --out --kernel-name --launch-skip --launch-count --gpu-model --explain --top --json --exit-zero --quiet -q --help' ;;
        frx\ explain) words='--source --out --scope --force --quiet -q --help' ;;
        frx\ reconcile) words='--top --gpu-model --json --quiet -q --help' ;;
        frx\ compare) words='--with-ptx --with-ncu --ncu-a --ncu-b --build-flags --gpu-model --json --quiet -q --help' ;;
        frx\ bench) words='--runs --warmup --build-flags --arch --gpu-model --with-ncu --time-limit --json --quiet -q --help' ;;
        frx\ fleet) words='--parquet --workers --engine --address --top --json --output -o --quiet -q --help' ;;
        frx\ trial) words='--train --candidate --frozen --aa --policy --ignore-load --inner --device --dtype --shape --engine --address --working-dir --ledger --format --json --quiet -q --help' ;;
        frx\ ledger) words='list show rollback export verify upgrade --help' ;;
        frx\ ledger\ list) words='--signature --environment --kind --limit --all --format --json --ledger --help' ;;
        frx\ ledger\ show) words='--format --json --ledger --help' ;;
        frx\ ledger\ rollback) words='--environment --reason --ledger --quiet -q --help' ;;
        frx\ ledger\ export) words='--output -o --ledger --quiet -q --help' ;;
        frx\ ledger\ verify) words='--ledger --quiet -q --help' ;;
        frx\ ledger\ upgrade) words='--ledger --quiet -q --help' ;;
        frx\ serve) words='--host --port --token-file --allow-host --workers --queue --max-upload-mb --max-memory-mb --time-limit-s --shutdown-s --ledger --quiet -q --help' ;;
        frx\ rules) words='--format --json --help' ;;
        frx\ probe) words='--device --output --format --json --only --quiet -q --help' ;;
        frx\ doctor) words='--format --json --measure --quiet -q --help' ;;
        frx\ smoke-test) words='--json --quiet -q --help' ;;
        frx\ ncu-command) words='--output -o --kernel-name --launch-skip --launch-count --list --json --help' ;;
        frx\ completion) words='bash zsh fish --install --quiet -q --help' ;;
        esac
    fi
    compadd -- ${=words}
    [[ $PREFIX == -* ]] || _files
}
if [ "$funcstack[1]" = _frx ]; then _frx "$@"; else compdef _frx frx frx-graph; fi
