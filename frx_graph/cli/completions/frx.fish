# Completion of frx for fish, printed by `frx completion fish`.
complete -c frx -n 'not __fish_seen_subcommand_from init collect tune advise fix analyze profile explain reconcile compare bench fleet trial ledger serve rules probe doctor smoke-test ncu-command completion' -a 'init collect tune advise fix analyze profile explain reconcile compare bench fleet trial ledger serve rules probe doctor smoke-test ncu-command completion'
complete -c frx -n 'not __fish_seen_subcommand_from init collect tune advise fix analyze profile explain reconcile compare bench fleet trial ledger serve rules probe doctor smoke-test ncu-command completion' -l version
complete -c frx -n 'not __fish_seen_subcommand_from init collect tune advise fix analyze profile explain reconcile compare bench fleet trial ledger serve rules probe doctor smoke-test ncu-command completion' -l help
complete -c frx -n '__fish_seen_subcommand_from init' -l patch -r
complete -c frx -n '__fish_seen_subcommand_from init' -l unpatch -r
complete -c frx -n '__fish_seen_subcommand_from init' -l yes
complete -c frx -n '__fish_seen_subcommand_from init' -s y
complete -c frx -n '__fish_seen_subcommand_from init' -l json
complete -c frx -n '__fish_seen_subcommand_from init' -l quiet
complete -c frx -n '__fish_seen_subcommand_from init' -s q
complete -c frx -n '__fish_seen_subcommand_from init' -l help
complete -c frx -n '__fish_seen_subcommand_from collect' -l name -r
complete -c frx -n '__fish_seen_subcommand_from collect' -l out -r
complete -c frx -n '__fish_seen_subcommand_from collect' -l run-id -r
complete -c frx -n '__fish_seen_subcommand_from collect' -l artifact-dir -r
complete -c frx -n '__fish_seen_subcommand_from collect' -l no-profiler-import
complete -c frx -n '__fish_seen_subcommand_from collect' -l sample-interval-ms -r
complete -c frx -n '__fish_seen_subcommand_from collect' -l config -r
complete -c frx -n '__fish_seen_subcommand_from collect' -l explain
complete -c frx -n '__fish_seen_subcommand_from collect' -l no-zip
complete -c frx -n '__fish_seen_subcommand_from collect' -l json
complete -c frx -n '__fish_seen_subcommand_from collect' -l quiet
complete -c frx -n '__fish_seen_subcommand_from collect' -s q
complete -c frx -n '__fish_seen_subcommand_from collect' -l help
complete -c frx -n '__fish_seen_subcommand_from tune' -l name -r
complete -c frx -n '__fish_seen_subcommand_from tune' -l out -r
complete -c frx -n '__fish_seen_subcommand_from tune' -l max-trials -r
complete -c frx -n '__fish_seen_subcommand_from tune' -l safe
complete -c frx -n '__fish_seen_subcommand_from tune' -l no-safe
complete -c frx -n '__fish_seen_subcommand_from tune' -l allow-risky-actions
complete -c frx -n '__fish_seen_subcommand_from tune' -l time-budget-s -r
complete -c frx -n '__fish_seen_subcommand_from tune' -l warmup-steps -r
complete -c frx -n '__fish_seen_subcommand_from tune' -l measure-steps -r
complete -c frx -n '__fish_seen_subcommand_from tune' -l repeat-count -r
complete -c frx -n '__fish_seen_subcommand_from tune' -l race
complete -c frx -n '__fish_seen_subcommand_from tune' -l no-race
complete -c frx -n '__fish_seen_subcommand_from tune' -l race-promote-count -r
complete -c frx -n '__fish_seen_subcommand_from tune' -l race-warmup-steps -r
complete -c frx -n '__fish_seen_subcommand_from tune' -l race-measure-steps -r
complete -c frx -n '__fish_seen_subcommand_from tune' -l bottleneck -r
complete -c frx -n '__fish_seen_subcommand_from tune' -l family -r
complete -c frx -n '__fish_seen_subcommand_from tune' -l candidate -r
complete -c frx -n '__fish_seen_subcommand_from tune' -l min-speedup -r
complete -c frx -n '__fish_seen_subcommand_from tune' -l quality-checks
complete -c frx -n '__fish_seen_subcommand_from tune' -l no-quality-checks
complete -c frx -n '__fish_seen_subcommand_from tune' -l max-final-loss-regression -r
complete -c frx -n '__fish_seen_subcommand_from tune' -l max-loss-divergence -r
complete -c frx -n '__fish_seen_subcommand_from tune' -l output-abs-tolerance -r
complete -c frx -n '__fish_seen_subcommand_from tune' -l allow-nonfinite-loss
complete -c frx -n '__fish_seen_subcommand_from tune' -l sample-interval-ms -r
complete -c frx -n '__fish_seen_subcommand_from tune' -l one-at-a-time
complete -c frx -n '__fish_seen_subcommand_from tune' -l ignore-load
complete -c frx -n '__fish_seen_subcommand_from tune' -l engine -r -f -a 'local ray'
complete -c frx -n '__fish_seen_subcommand_from tune' -l address -r
complete -c frx -n '__fish_seen_subcommand_from tune' -l working-dir -r
complete -c frx -n '__fish_seen_subcommand_from tune' -l resume -r
complete -c frx -n '__fish_seen_subcommand_from tune' -l json
complete -c frx -n '__fish_seen_subcommand_from tune' -l quiet
complete -c frx -n '__fish_seen_subcommand_from tune' -s q
complete -c frx -n '__fish_seen_subcommand_from tune' -l help
complete -c frx -n '__fish_seen_subcommand_from advise' -l train
complete -c frx -n '__fish_seen_subcommand_from advise' -l no-train
complete -c frx -n '__fish_seen_subcommand_from advise' -l dtype -r
complete -c frx -n '__fish_seen_subcommand_from advise' -l device -r
complete -c frx -n '__fish_seen_subcommand_from advise' -l for -r
complete -c frx -n '__fish_seen_subcommand_from advise' -l inner -r
complete -c frx -n '__fish_seen_subcommand_from advise' -l observe
complete -c frx -n '__fish_seen_subcommand_from advise' -l no-observe
complete -c frx -n '__fish_seen_subcommand_from advise' -l measure
complete -c frx -n '__fish_seen_subcommand_from advise' -l no-measure
complete -c frx -n '__fish_seen_subcommand_from advise' -l evidence -r
complete -c frx -n '__fish_seen_subcommand_from advise' -l format -r -f -a 'text json html md sarif github'
complete -c frx -n '__fish_seen_subcommand_from advise' -l json
complete -c frx -n '__fish_seen_subcommand_from advise' -l output -r
complete -c frx -n '__fish_seen_subcommand_from advise' -s o -r
complete -c frx -n '__fish_seen_subcommand_from advise' -l select -r
complete -c frx -n '__fish_seen_subcommand_from advise' -l ignore -r
complete -c frx -n '__fish_seen_subcommand_from advise' -l baseline -r
complete -c frx -n '__fish_seen_subcommand_from advise' -l write-baseline -r
complete -c frx -n '__fish_seen_subcommand_from advise' -l exit-zero
complete -c frx -n '__fish_seen_subcommand_from advise' -l no-exit-zero
complete -c frx -n '__fish_seen_subcommand_from advise' -l top -r
complete -c frx -n '__fish_seen_subcommand_from advise' -l quiet
complete -c frx -n '__fish_seen_subcommand_from advise' -s q
complete -c frx -n '__fish_seen_subcommand_from advise' -l help
complete -c frx -n '__fish_seen_subcommand_from fix' -l apply
complete -c frx -n '__fish_seen_subcommand_from fix' -l diff
complete -c frx -n '__fish_seen_subcommand_from fix' -l patch -r
complete -c frx -n '__fish_seen_subcommand_from fix' -l prove
complete -c frx -n '__fish_seen_subcommand_from fix' -l no-prove
complete -c frx -n '__fish_seen_subcommand_from fix' -l unsafe-fixes
complete -c frx -n '__fish_seen_subcommand_from fix' -l select -r
complete -c frx -n '__fish_seen_subcommand_from fix' -l ignore -r
complete -c frx -n '__fish_seen_subcommand_from fix' -l train
complete -c frx -n '__fish_seen_subcommand_from fix' -l no-train
complete -c frx -n '__fish_seen_subcommand_from fix' -l dtype -r
complete -c frx -n '__fish_seen_subcommand_from fix' -l device -r
complete -c frx -n '__fish_seen_subcommand_from fix' -l inner -r
complete -c frx -n '__fish_seen_subcommand_from fix' -l allow-dirty
complete -c frx -n '__fish_seen_subcommand_from fix' -l policy -r
complete -c frx -n '__fish_seen_subcommand_from fix' -l ignore-load
complete -c frx -n '__fish_seen_subcommand_from fix' -l ledger -r
complete -c frx -n '__fish_seen_subcommand_from fix' -l format -r -f -a 'text json github'
complete -c frx -n '__fish_seen_subcommand_from fix' -l json
complete -c frx -n '__fish_seen_subcommand_from fix' -l quiet
complete -c frx -n '__fish_seen_subcommand_from fix' -s q
complete -c frx -n '__fish_seen_subcommand_from fix' -l help
complete -c frx -n '__fish_seen_subcommand_from analyze' -l trace -r
complete -c frx -n '__fish_seen_subcommand_from analyze' -l model -r
complete -c frx -n '__fish_seen_subcommand_from analyze' -l format -r -f -a 'text json html md sarif github'
complete -c frx -n '__fish_seen_subcommand_from analyze' -l json
complete -c frx -n '__fish_seen_subcommand_from analyze' -l output-json
complete -c frx -n '__fish_seen_subcommand_from analyze' -l output -r
complete -c frx -n '__fish_seen_subcommand_from analyze' -s o -r
complete -c frx -n '__fish_seen_subcommand_from analyze' -l select -r
complete -c frx -n '__fish_seen_subcommand_from analyze' -l ignore -r
complete -c frx -n '__fish_seen_subcommand_from analyze' -l exit-zero
complete -c frx -n '__fish_seen_subcommand_from analyze' -l top -r
complete -c frx -n '__fish_seen_subcommand_from analyze' -l scope -r -f -a 'run steady_state auto'
complete -c frx -n '__fish_seen_subcommand_from analyze' -l gpu-model -r
complete -c frx -n '__fish_seen_subcommand_from analyze' -l before -r
complete -c frx -n '__fish_seen_subcommand_from analyze' -l after -r
complete -c frx -n '__fish_seen_subcommand_from analyze' -l before-source -r
complete -c frx -n '__fish_seen_subcommand_from analyze' -l before-ptx -r
complete -c frx -n '__fish_seen_subcommand_from analyze' -l before-ncu -r
complete -c frx -n '__fish_seen_subcommand_from analyze' -l after-source -r
complete -c frx -n '__fish_seen_subcommand_from analyze' -l after-ptx -r
complete -c frx -n '__fish_seen_subcommand_from analyze' -l after-ncu -r
complete -c frx -n '__fish_seen_subcommand_from analyze' -l before-label -r
complete -c frx -n '__fish_seen_subcommand_from analyze' -l after-label -r
complete -c frx -n '__fish_seen_subcommand_from analyze' -l quiet
complete -c frx -n '__fish_seen_subcommand_from analyze' -s q
complete -c frx -n '__fish_seen_subcommand_from analyze' -l help
complete -c frx -n '__fish_seen_subcommand_from profile' -l ncu -r
complete -c frx -n '__fish_seen_subcommand_from profile' -l ptx -r
complete -c frx -n '__fish_seen_subcommand_from profile' -l preset -r
complete -c frx -n '__fish_seen_subcommand_from profile' -l out -r
complete -c frx -n '__fish_seen_subcommand_from profile' -l kernel-name -r
complete -c frx -n '__fish_seen_subcommand_from profile' -l launch-skip -r
complete -c frx -n '__fish_seen_subcommand_from profile' -l launch-count -r
complete -c frx -n '__fish_seen_subcommand_from profile' -l gpu-model -r
complete -c frx -n '__fish_seen_subcommand_from profile' -l explain
complete -c frx -n '__fish_seen_subcommand_from profile' -l top -r
complete -c frx -n '__fish_seen_subcommand_from profile' -l json
complete -c frx -n '__fish_seen_subcommand_from profile' -l exit-zero
complete -c frx -n '__fish_seen_subcommand_from profile' -l quiet
complete -c frx -n '__fish_seen_subcommand_from profile' -s q
complete -c frx -n '__fish_seen_subcommand_from profile' -l help
complete -c frx -n '__fish_seen_subcommand_from explain' -l source -r
complete -c frx -n '__fish_seen_subcommand_from explain' -l out -r
complete -c frx -n '__fish_seen_subcommand_from explain' -l scope -r -f -a 'run steady_state auto'
complete -c frx -n '__fish_seen_subcommand_from explain' -l force
complete -c frx -n '__fish_seen_subcommand_from explain' -l quiet
complete -c frx -n '__fish_seen_subcommand_from explain' -s q
complete -c frx -n '__fish_seen_subcommand_from explain' -l help
complete -c frx -n '__fish_seen_subcommand_from reconcile' -l top -r
complete -c frx -n '__fish_seen_subcommand_from reconcile' -l gpu-model -r
complete -c frx -n '__fish_seen_subcommand_from reconcile' -l json
complete -c frx -n '__fish_seen_subcommand_from reconcile' -l quiet
complete -c frx -n '__fish_seen_subcommand_from reconcile' -s q
complete -c frx -n '__fish_seen_subcommand_from reconcile' -l help
complete -c frx -n '__fish_seen_subcommand_from compare' -l with-ptx
complete -c frx -n '__fish_seen_subcommand_from compare' -l with-ncu
complete -c frx -n '__fish_seen_subcommand_from compare' -l ncu-a -r
complete -c frx -n '__fish_seen_subcommand_from compare' -l ncu-b -r
complete -c frx -n '__fish_seen_subcommand_from compare' -l build-flags -r
complete -c frx -n '__fish_seen_subcommand_from compare' -l gpu-model -r
complete -c frx -n '__fish_seen_subcommand_from compare' -l json
complete -c frx -n '__fish_seen_subcommand_from compare' -l quiet
complete -c frx -n '__fish_seen_subcommand_from compare' -s q
complete -c frx -n '__fish_seen_subcommand_from compare' -l help
complete -c frx -n '__fish_seen_subcommand_from bench' -l runs -r
complete -c frx -n '__fish_seen_subcommand_from bench' -l warmup -r
complete -c frx -n '__fish_seen_subcommand_from bench' -l build-flags -r
complete -c frx -n '__fish_seen_subcommand_from bench' -l arch -r
complete -c frx -n '__fish_seen_subcommand_from bench' -l gpu-model -r
complete -c frx -n '__fish_seen_subcommand_from bench' -l with-ncu
complete -c frx -n '__fish_seen_subcommand_from bench' -l time-limit -r
complete -c frx -n '__fish_seen_subcommand_from bench' -l json
complete -c frx -n '__fish_seen_subcommand_from bench' -l quiet
complete -c frx -n '__fish_seen_subcommand_from bench' -s q
complete -c frx -n '__fish_seen_subcommand_from bench' -l help
complete -c frx -n '__fish_seen_subcommand_from fleet' -l parquet -r
complete -c frx -n '__fish_seen_subcommand_from fleet' -l workers -r
complete -c frx -n '__fish_seen_subcommand_from fleet' -l engine -r -f -a 'local ray'
complete -c frx -n '__fish_seen_subcommand_from fleet' -l address -r
complete -c frx -n '__fish_seen_subcommand_from fleet' -l top -r
complete -c frx -n '__fish_seen_subcommand_from fleet' -l json
complete -c frx -n '__fish_seen_subcommand_from fleet' -l output -r
complete -c frx -n '__fish_seen_subcommand_from fleet' -s o -r
complete -c frx -n '__fish_seen_subcommand_from fleet' -l quiet
complete -c frx -n '__fish_seen_subcommand_from fleet' -s q
complete -c frx -n '__fish_seen_subcommand_from fleet' -l help
complete -c frx -n '__fish_seen_subcommand_from trial' -l train
complete -c frx -n '__fish_seen_subcommand_from trial' -l candidate -r
complete -c frx -n '__fish_seen_subcommand_from trial' -l frozen
complete -c frx -n '__fish_seen_subcommand_from trial' -l aa
complete -c frx -n '__fish_seen_subcommand_from trial' -l policy -r
complete -c frx -n '__fish_seen_subcommand_from trial' -l ignore-load
complete -c frx -n '__fish_seen_subcommand_from trial' -l inner -r
complete -c frx -n '__fish_seen_subcommand_from trial' -l device -r
complete -c frx -n '__fish_seen_subcommand_from trial' -l dtype -r
complete -c frx -n '__fish_seen_subcommand_from trial' -l shape -r
complete -c frx -n '__fish_seen_subcommand_from trial' -l engine -r -f -a 'local ray'
complete -c frx -n '__fish_seen_subcommand_from trial' -l address -r
complete -c frx -n '__fish_seen_subcommand_from trial' -l working-dir -r
complete -c frx -n '__fish_seen_subcommand_from trial' -l ledger -r
complete -c frx -n '__fish_seen_subcommand_from trial' -l format -r -f -a 'text json'
complete -c frx -n '__fish_seen_subcommand_from trial' -l json
complete -c frx -n '__fish_seen_subcommand_from trial' -l quiet
complete -c frx -n '__fish_seen_subcommand_from trial' -s q
complete -c frx -n '__fish_seen_subcommand_from trial' -l help
complete -c frx -n '__fish_seen_subcommand_from ledger; and not __fish_seen_subcommand_from list show rollback export verify upgrade' -a 'list show rollback export verify upgrade'
complete -c frx -n '__fish_seen_subcommand_from ledger; and not __fish_seen_subcommand_from list show rollback export verify upgrade' -l help
complete -c frx -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from list' -l signature -r
complete -c frx -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from list' -l environment -r
complete -c frx -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from list' -l kind -r
complete -c frx -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from list' -l limit -r
complete -c frx -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from list' -l all
complete -c frx -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from list' -l format -r -f -a 'text json'
complete -c frx -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from list' -l json
complete -c frx -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from list' -l ledger -r
complete -c frx -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from list' -l help
complete -c frx -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from show' -l format -r -f -a 'text json'
complete -c frx -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from show' -l json
complete -c frx -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from show' -l ledger -r
complete -c frx -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from show' -l help
complete -c frx -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from rollback' -l environment -r
complete -c frx -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from rollback' -l reason -r
complete -c frx -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from rollback' -l ledger -r
complete -c frx -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from rollback' -l quiet
complete -c frx -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from rollback' -s q
complete -c frx -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from rollback' -l help
complete -c frx -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from export' -l output -r
complete -c frx -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from export' -s o -r
complete -c frx -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from export' -l ledger -r
complete -c frx -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from export' -l quiet
complete -c frx -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from export' -s q
complete -c frx -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from export' -l help
complete -c frx -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from verify' -l ledger -r
complete -c frx -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from verify' -l quiet
complete -c frx -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from verify' -s q
complete -c frx -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from verify' -l help
complete -c frx -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from upgrade' -l ledger -r
complete -c frx -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from upgrade' -l quiet
complete -c frx -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from upgrade' -s q
complete -c frx -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from upgrade' -l help
complete -c frx -n '__fish_seen_subcommand_from serve' -l host -r
complete -c frx -n '__fish_seen_subcommand_from serve' -l port -r
complete -c frx -n '__fish_seen_subcommand_from serve' -l token-file -r
complete -c frx -n '__fish_seen_subcommand_from serve' -l allow-host -r
complete -c frx -n '__fish_seen_subcommand_from serve' -l workers -r
complete -c frx -n '__fish_seen_subcommand_from serve' -l queue -r
complete -c frx -n '__fish_seen_subcommand_from serve' -l max-upload-mb -r
complete -c frx -n '__fish_seen_subcommand_from serve' -l max-memory-mb -r
complete -c frx -n '__fish_seen_subcommand_from serve' -l time-limit-s -r
complete -c frx -n '__fish_seen_subcommand_from serve' -l shutdown-s -r
complete -c frx -n '__fish_seen_subcommand_from serve' -l ledger -r
complete -c frx -n '__fish_seen_subcommand_from serve' -l quiet
complete -c frx -n '__fish_seen_subcommand_from serve' -s q
complete -c frx -n '__fish_seen_subcommand_from serve' -l help
complete -c frx -n '__fish_seen_subcommand_from rules' -l format -r -f -a 'text json'
complete -c frx -n '__fish_seen_subcommand_from rules' -l json
complete -c frx -n '__fish_seen_subcommand_from rules' -l help
complete -c frx -n '__fish_seen_subcommand_from probe' -l device -r -f -a 'cpu cuda'
complete -c frx -n '__fish_seen_subcommand_from probe' -l output -r
complete -c frx -n '__fish_seen_subcommand_from probe' -l format -r -f -a 'text json'
complete -c frx -n '__fish_seen_subcommand_from probe' -l json
complete -c frx -n '__fish_seen_subcommand_from probe' -l only -r
complete -c frx -n '__fish_seen_subcommand_from probe' -l quiet
complete -c frx -n '__fish_seen_subcommand_from probe' -s q
complete -c frx -n '__fish_seen_subcommand_from probe' -l help
complete -c frx -n '__fish_seen_subcommand_from doctor' -l format -r -f -a 'text json'
complete -c frx -n '__fish_seen_subcommand_from doctor' -l json
complete -c frx -n '__fish_seen_subcommand_from doctor' -l measure
complete -c frx -n '__fish_seen_subcommand_from doctor' -l quiet
complete -c frx -n '__fish_seen_subcommand_from doctor' -s q
complete -c frx -n '__fish_seen_subcommand_from doctor' -l help
complete -c frx -n '__fish_seen_subcommand_from smoke-test' -l json
complete -c frx -n '__fish_seen_subcommand_from smoke-test' -l quiet
complete -c frx -n '__fish_seen_subcommand_from smoke-test' -s q
complete -c frx -n '__fish_seen_subcommand_from smoke-test' -l help
complete -c frx -n '__fish_seen_subcommand_from ncu-command' -l output -r
complete -c frx -n '__fish_seen_subcommand_from ncu-command' -s o -r
complete -c frx -n '__fish_seen_subcommand_from ncu-command' -l kernel-name -r
complete -c frx -n '__fish_seen_subcommand_from ncu-command' -l launch-skip -r
complete -c frx -n '__fish_seen_subcommand_from ncu-command' -l launch-count -r
complete -c frx -n '__fish_seen_subcommand_from ncu-command' -l list
complete -c frx -n '__fish_seen_subcommand_from ncu-command' -l json
complete -c frx -n '__fish_seen_subcommand_from ncu-command' -l help
complete -c frx -n '__fish_seen_subcommand_from completion; and not __fish_seen_subcommand_from bash zsh fish' -a 'bash zsh fish'
complete -c frx -n '__fish_seen_subcommand_from completion; and not __fish_seen_subcommand_from bash zsh fish' -l install
complete -c frx -n '__fish_seen_subcommand_from completion; and not __fish_seen_subcommand_from bash zsh fish' -l quiet
complete -c frx -n '__fish_seen_subcommand_from completion; and not __fish_seen_subcommand_from bash zsh fish' -s q
complete -c frx -n '__fish_seen_subcommand_from completion; and not __fish_seen_subcommand_from bash zsh fish' -l help
complete -c frx-graph -n 'not __fish_seen_subcommand_from init collect tune advise fix analyze profile explain reconcile compare bench fleet trial ledger serve rules probe doctor smoke-test ncu-command completion' -a 'init collect tune advise fix analyze profile explain reconcile compare bench fleet trial ledger serve rules probe doctor smoke-test ncu-command completion'
complete -c frx-graph -n 'not __fish_seen_subcommand_from init collect tune advise fix analyze profile explain reconcile compare bench fleet trial ledger serve rules probe doctor smoke-test ncu-command completion' -l version
complete -c frx-graph -n 'not __fish_seen_subcommand_from init collect tune advise fix analyze profile explain reconcile compare bench fleet trial ledger serve rules probe doctor smoke-test ncu-command completion' -l help
complete -c frx-graph -n '__fish_seen_subcommand_from init' -l patch -r
complete -c frx-graph -n '__fish_seen_subcommand_from init' -l unpatch -r
complete -c frx-graph -n '__fish_seen_subcommand_from init' -l yes
complete -c frx-graph -n '__fish_seen_subcommand_from init' -s y
complete -c frx-graph -n '__fish_seen_subcommand_from init' -l json
complete -c frx-graph -n '__fish_seen_subcommand_from init' -l quiet
complete -c frx-graph -n '__fish_seen_subcommand_from init' -s q
complete -c frx-graph -n '__fish_seen_subcommand_from init' -l help
complete -c frx-graph -n '__fish_seen_subcommand_from collect' -l name -r
complete -c frx-graph -n '__fish_seen_subcommand_from collect' -l out -r
complete -c frx-graph -n '__fish_seen_subcommand_from collect' -l run-id -r
complete -c frx-graph -n '__fish_seen_subcommand_from collect' -l artifact-dir -r
complete -c frx-graph -n '__fish_seen_subcommand_from collect' -l no-profiler-import
complete -c frx-graph -n '__fish_seen_subcommand_from collect' -l sample-interval-ms -r
complete -c frx-graph -n '__fish_seen_subcommand_from collect' -l config -r
complete -c frx-graph -n '__fish_seen_subcommand_from collect' -l explain
complete -c frx-graph -n '__fish_seen_subcommand_from collect' -l no-zip
complete -c frx-graph -n '__fish_seen_subcommand_from collect' -l json
complete -c frx-graph -n '__fish_seen_subcommand_from collect' -l quiet
complete -c frx-graph -n '__fish_seen_subcommand_from collect' -s q
complete -c frx-graph -n '__fish_seen_subcommand_from collect' -l help
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l name -r
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l out -r
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l max-trials -r
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l safe
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l no-safe
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l allow-risky-actions
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l time-budget-s -r
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l warmup-steps -r
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l measure-steps -r
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l repeat-count -r
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l race
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l no-race
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l race-promote-count -r
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l race-warmup-steps -r
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l race-measure-steps -r
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l bottleneck -r
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l family -r
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l candidate -r
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l min-speedup -r
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l quality-checks
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l no-quality-checks
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l max-final-loss-regression -r
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l max-loss-divergence -r
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l output-abs-tolerance -r
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l allow-nonfinite-loss
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l sample-interval-ms -r
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l one-at-a-time
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l ignore-load
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l engine -r -f -a 'local ray'
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l address -r
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l working-dir -r
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l resume -r
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l json
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l quiet
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -s q
complete -c frx-graph -n '__fish_seen_subcommand_from tune' -l help
complete -c frx-graph -n '__fish_seen_subcommand_from advise' -l train
complete -c frx-graph -n '__fish_seen_subcommand_from advise' -l no-train
complete -c frx-graph -n '__fish_seen_subcommand_from advise' -l dtype -r
complete -c frx-graph -n '__fish_seen_subcommand_from advise' -l device -r
complete -c frx-graph -n '__fish_seen_subcommand_from advise' -l for -r
complete -c frx-graph -n '__fish_seen_subcommand_from advise' -l inner -r
complete -c frx-graph -n '__fish_seen_subcommand_from advise' -l observe
complete -c frx-graph -n '__fish_seen_subcommand_from advise' -l no-observe
complete -c frx-graph -n '__fish_seen_subcommand_from advise' -l measure
complete -c frx-graph -n '__fish_seen_subcommand_from advise' -l no-measure
complete -c frx-graph -n '__fish_seen_subcommand_from advise' -l evidence -r
complete -c frx-graph -n '__fish_seen_subcommand_from advise' -l format -r -f -a 'text json html md sarif github'
complete -c frx-graph -n '__fish_seen_subcommand_from advise' -l json
complete -c frx-graph -n '__fish_seen_subcommand_from advise' -l output -r
complete -c frx-graph -n '__fish_seen_subcommand_from advise' -s o -r
complete -c frx-graph -n '__fish_seen_subcommand_from advise' -l select -r
complete -c frx-graph -n '__fish_seen_subcommand_from advise' -l ignore -r
complete -c frx-graph -n '__fish_seen_subcommand_from advise' -l baseline -r
complete -c frx-graph -n '__fish_seen_subcommand_from advise' -l write-baseline -r
complete -c frx-graph -n '__fish_seen_subcommand_from advise' -l exit-zero
complete -c frx-graph -n '__fish_seen_subcommand_from advise' -l no-exit-zero
complete -c frx-graph -n '__fish_seen_subcommand_from advise' -l top -r
complete -c frx-graph -n '__fish_seen_subcommand_from advise' -l quiet
complete -c frx-graph -n '__fish_seen_subcommand_from advise' -s q
complete -c frx-graph -n '__fish_seen_subcommand_from advise' -l help
complete -c frx-graph -n '__fish_seen_subcommand_from fix' -l apply
complete -c frx-graph -n '__fish_seen_subcommand_from fix' -l diff
complete -c frx-graph -n '__fish_seen_subcommand_from fix' -l patch -r
complete -c frx-graph -n '__fish_seen_subcommand_from fix' -l prove
complete -c frx-graph -n '__fish_seen_subcommand_from fix' -l no-prove
complete -c frx-graph -n '__fish_seen_subcommand_from fix' -l unsafe-fixes
complete -c frx-graph -n '__fish_seen_subcommand_from fix' -l select -r
complete -c frx-graph -n '__fish_seen_subcommand_from fix' -l ignore -r
complete -c frx-graph -n '__fish_seen_subcommand_from fix' -l train
complete -c frx-graph -n '__fish_seen_subcommand_from fix' -l no-train
complete -c frx-graph -n '__fish_seen_subcommand_from fix' -l dtype -r
complete -c frx-graph -n '__fish_seen_subcommand_from fix' -l device -r
complete -c frx-graph -n '__fish_seen_subcommand_from fix' -l inner -r
complete -c frx-graph -n '__fish_seen_subcommand_from fix' -l allow-dirty
complete -c frx-graph -n '__fish_seen_subcommand_from fix' -l policy -r
complete -c frx-graph -n '__fish_seen_subcommand_from fix' -l ignore-load
complete -c frx-graph -n '__fish_seen_subcommand_from fix' -l ledger -r
complete -c frx-graph -n '__fish_seen_subcommand_from fix' -l format -r -f -a 'text json github'
complete -c frx-graph -n '__fish_seen_subcommand_from fix' -l json
complete -c frx-graph -n '__fish_seen_subcommand_from fix' -l quiet
complete -c frx-graph -n '__fish_seen_subcommand_from fix' -s q
complete -c frx-graph -n '__fish_seen_subcommand_from fix' -l help
complete -c frx-graph -n '__fish_seen_subcommand_from analyze' -l trace -r
complete -c frx-graph -n '__fish_seen_subcommand_from analyze' -l model -r
complete -c frx-graph -n '__fish_seen_subcommand_from analyze' -l format -r -f -a 'text json html md sarif github'
complete -c frx-graph -n '__fish_seen_subcommand_from analyze' -l json
complete -c frx-graph -n '__fish_seen_subcommand_from analyze' -l output-json
complete -c frx-graph -n '__fish_seen_subcommand_from analyze' -l output -r
complete -c frx-graph -n '__fish_seen_subcommand_from analyze' -s o -r
complete -c frx-graph -n '__fish_seen_subcommand_from analyze' -l select -r
complete -c frx-graph -n '__fish_seen_subcommand_from analyze' -l ignore -r
complete -c frx-graph -n '__fish_seen_subcommand_from analyze' -l exit-zero
complete -c frx-graph -n '__fish_seen_subcommand_from analyze' -l top -r
complete -c frx-graph -n '__fish_seen_subcommand_from analyze' -l scope -r -f -a 'run steady_state auto'
complete -c frx-graph -n '__fish_seen_subcommand_from analyze' -l gpu-model -r
complete -c frx-graph -n '__fish_seen_subcommand_from analyze' -l before -r
complete -c frx-graph -n '__fish_seen_subcommand_from analyze' -l after -r
complete -c frx-graph -n '__fish_seen_subcommand_from analyze' -l before-source -r
complete -c frx-graph -n '__fish_seen_subcommand_from analyze' -l before-ptx -r
complete -c frx-graph -n '__fish_seen_subcommand_from analyze' -l before-ncu -r
complete -c frx-graph -n '__fish_seen_subcommand_from analyze' -l after-source -r
complete -c frx-graph -n '__fish_seen_subcommand_from analyze' -l after-ptx -r
complete -c frx-graph -n '__fish_seen_subcommand_from analyze' -l after-ncu -r
complete -c frx-graph -n '__fish_seen_subcommand_from analyze' -l before-label -r
complete -c frx-graph -n '__fish_seen_subcommand_from analyze' -l after-label -r
complete -c frx-graph -n '__fish_seen_subcommand_from analyze' -l quiet
complete -c frx-graph -n '__fish_seen_subcommand_from analyze' -s q
complete -c frx-graph -n '__fish_seen_subcommand_from analyze' -l help
complete -c frx-graph -n '__fish_seen_subcommand_from profile' -l ncu -r
complete -c frx-graph -n '__fish_seen_subcommand_from profile' -l ptx -r
complete -c frx-graph -n '__fish_seen_subcommand_from profile' -l preset -r
complete -c frx-graph -n '__fish_seen_subcommand_from profile' -l out -r
complete -c frx-graph -n '__fish_seen_subcommand_from profile' -l kernel-name -r
complete -c frx-graph -n '__fish_seen_subcommand_from profile' -l launch-skip -r
complete -c frx-graph -n '__fish_seen_subcommand_from profile' -l launch-count -r
complete -c frx-graph -n '__fish_seen_subcommand_from profile' -l gpu-model -r
complete -c frx-graph -n '__fish_seen_subcommand_from profile' -l explain
complete -c frx-graph -n '__fish_seen_subcommand_from profile' -l top -r
complete -c frx-graph -n '__fish_seen_subcommand_from profile' -l json
complete -c frx-graph -n '__fish_seen_subcommand_from profile' -l exit-zero
complete -c frx-graph -n '__fish_seen_subcommand_from profile' -l quiet
complete -c frx-graph -n '__fish_seen_subcommand_from profile' -s q
complete -c frx-graph -n '__fish_seen_subcommand_from profile' -l help
complete -c frx-graph -n '__fish_seen_subcommand_from explain' -l source -r
complete -c frx-graph -n '__fish_seen_subcommand_from explain' -l out -r
complete -c frx-graph -n '__fish_seen_subcommand_from explain' -l scope -r -f -a 'run steady_state auto'
complete -c frx-graph -n '__fish_seen_subcommand_from explain' -l force
complete -c frx-graph -n '__fish_seen_subcommand_from explain' -l quiet
complete -c frx-graph -n '__fish_seen_subcommand_from explain' -s q
complete -c frx-graph -n '__fish_seen_subcommand_from explain' -l help
complete -c frx-graph -n '__fish_seen_subcommand_from reconcile' -l top -r
complete -c frx-graph -n '__fish_seen_subcommand_from reconcile' -l gpu-model -r
complete -c frx-graph -n '__fish_seen_subcommand_from reconcile' -l json
complete -c frx-graph -n '__fish_seen_subcommand_from reconcile' -l quiet
complete -c frx-graph -n '__fish_seen_subcommand_from reconcile' -s q
complete -c frx-graph -n '__fish_seen_subcommand_from reconcile' -l help
complete -c frx-graph -n '__fish_seen_subcommand_from compare' -l with-ptx
complete -c frx-graph -n '__fish_seen_subcommand_from compare' -l with-ncu
complete -c frx-graph -n '__fish_seen_subcommand_from compare' -l ncu-a -r
complete -c frx-graph -n '__fish_seen_subcommand_from compare' -l ncu-b -r
complete -c frx-graph -n '__fish_seen_subcommand_from compare' -l build-flags -r
complete -c frx-graph -n '__fish_seen_subcommand_from compare' -l gpu-model -r
complete -c frx-graph -n '__fish_seen_subcommand_from compare' -l json
complete -c frx-graph -n '__fish_seen_subcommand_from compare' -l quiet
complete -c frx-graph -n '__fish_seen_subcommand_from compare' -s q
complete -c frx-graph -n '__fish_seen_subcommand_from compare' -l help
complete -c frx-graph -n '__fish_seen_subcommand_from bench' -l runs -r
complete -c frx-graph -n '__fish_seen_subcommand_from bench' -l warmup -r
complete -c frx-graph -n '__fish_seen_subcommand_from bench' -l build-flags -r
complete -c frx-graph -n '__fish_seen_subcommand_from bench' -l arch -r
complete -c frx-graph -n '__fish_seen_subcommand_from bench' -l gpu-model -r
complete -c frx-graph -n '__fish_seen_subcommand_from bench' -l with-ncu
complete -c frx-graph -n '__fish_seen_subcommand_from bench' -l time-limit -r
complete -c frx-graph -n '__fish_seen_subcommand_from bench' -l json
complete -c frx-graph -n '__fish_seen_subcommand_from bench' -l quiet
complete -c frx-graph -n '__fish_seen_subcommand_from bench' -s q
complete -c frx-graph -n '__fish_seen_subcommand_from bench' -l help
complete -c frx-graph -n '__fish_seen_subcommand_from fleet' -l parquet -r
complete -c frx-graph -n '__fish_seen_subcommand_from fleet' -l workers -r
complete -c frx-graph -n '__fish_seen_subcommand_from fleet' -l engine -r -f -a 'local ray'
complete -c frx-graph -n '__fish_seen_subcommand_from fleet' -l address -r
complete -c frx-graph -n '__fish_seen_subcommand_from fleet' -l top -r
complete -c frx-graph -n '__fish_seen_subcommand_from fleet' -l json
complete -c frx-graph -n '__fish_seen_subcommand_from fleet' -l output -r
complete -c frx-graph -n '__fish_seen_subcommand_from fleet' -s o -r
complete -c frx-graph -n '__fish_seen_subcommand_from fleet' -l quiet
complete -c frx-graph -n '__fish_seen_subcommand_from fleet' -s q
complete -c frx-graph -n '__fish_seen_subcommand_from fleet' -l help
complete -c frx-graph -n '__fish_seen_subcommand_from trial' -l train
complete -c frx-graph -n '__fish_seen_subcommand_from trial' -l candidate -r
complete -c frx-graph -n '__fish_seen_subcommand_from trial' -l frozen
complete -c frx-graph -n '__fish_seen_subcommand_from trial' -l aa
complete -c frx-graph -n '__fish_seen_subcommand_from trial' -l policy -r
complete -c frx-graph -n '__fish_seen_subcommand_from trial' -l ignore-load
complete -c frx-graph -n '__fish_seen_subcommand_from trial' -l inner -r
complete -c frx-graph -n '__fish_seen_subcommand_from trial' -l device -r
complete -c frx-graph -n '__fish_seen_subcommand_from trial' -l dtype -r
complete -c frx-graph -n '__fish_seen_subcommand_from trial' -l shape -r
complete -c frx-graph -n '__fish_seen_subcommand_from trial' -l engine -r -f -a 'local ray'
complete -c frx-graph -n '__fish_seen_subcommand_from trial' -l address -r
complete -c frx-graph -n '__fish_seen_subcommand_from trial' -l working-dir -r
complete -c frx-graph -n '__fish_seen_subcommand_from trial' -l ledger -r
complete -c frx-graph -n '__fish_seen_subcommand_from trial' -l format -r -f -a 'text json'
complete -c frx-graph -n '__fish_seen_subcommand_from trial' -l json
complete -c frx-graph -n '__fish_seen_subcommand_from trial' -l quiet
complete -c frx-graph -n '__fish_seen_subcommand_from trial' -s q
complete -c frx-graph -n '__fish_seen_subcommand_from trial' -l help
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and not __fish_seen_subcommand_from list show rollback export verify upgrade' -a 'list show rollback export verify upgrade'
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and not __fish_seen_subcommand_from list show rollback export verify upgrade' -l help
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from list' -l signature -r
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from list' -l environment -r
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from list' -l kind -r
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from list' -l limit -r
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from list' -l all
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from list' -l format -r -f -a 'text json'
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from list' -l json
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from list' -l ledger -r
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from list' -l help
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from show' -l format -r -f -a 'text json'
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from show' -l json
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from show' -l ledger -r
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from show' -l help
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from rollback' -l environment -r
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from rollback' -l reason -r
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from rollback' -l ledger -r
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from rollback' -l quiet
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from rollback' -s q
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from rollback' -l help
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from export' -l output -r
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from export' -s o -r
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from export' -l ledger -r
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from export' -l quiet
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from export' -s q
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from export' -l help
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from verify' -l ledger -r
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from verify' -l quiet
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from verify' -s q
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from verify' -l help
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from upgrade' -l ledger -r
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from upgrade' -l quiet
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from upgrade' -s q
complete -c frx-graph -n '__fish_seen_subcommand_from ledger; and __fish_seen_subcommand_from upgrade' -l help
complete -c frx-graph -n '__fish_seen_subcommand_from serve' -l host -r
complete -c frx-graph -n '__fish_seen_subcommand_from serve' -l port -r
complete -c frx-graph -n '__fish_seen_subcommand_from serve' -l token-file -r
complete -c frx-graph -n '__fish_seen_subcommand_from serve' -l allow-host -r
complete -c frx-graph -n '__fish_seen_subcommand_from serve' -l workers -r
complete -c frx-graph -n '__fish_seen_subcommand_from serve' -l queue -r
complete -c frx-graph -n '__fish_seen_subcommand_from serve' -l max-upload-mb -r
complete -c frx-graph -n '__fish_seen_subcommand_from serve' -l max-memory-mb -r
complete -c frx-graph -n '__fish_seen_subcommand_from serve' -l time-limit-s -r
complete -c frx-graph -n '__fish_seen_subcommand_from serve' -l shutdown-s -r
complete -c frx-graph -n '__fish_seen_subcommand_from serve' -l ledger -r
complete -c frx-graph -n '__fish_seen_subcommand_from serve' -l quiet
complete -c frx-graph -n '__fish_seen_subcommand_from serve' -s q
complete -c frx-graph -n '__fish_seen_subcommand_from serve' -l help
complete -c frx-graph -n '__fish_seen_subcommand_from rules' -l format -r -f -a 'text json'
complete -c frx-graph -n '__fish_seen_subcommand_from rules' -l json
complete -c frx-graph -n '__fish_seen_subcommand_from rules' -l help
complete -c frx-graph -n '__fish_seen_subcommand_from probe' -l device -r -f -a 'cpu cuda'
complete -c frx-graph -n '__fish_seen_subcommand_from probe' -l output -r
complete -c frx-graph -n '__fish_seen_subcommand_from probe' -l format -r -f -a 'text json'
complete -c frx-graph -n '__fish_seen_subcommand_from probe' -l json
complete -c frx-graph -n '__fish_seen_subcommand_from probe' -l only -r
complete -c frx-graph -n '__fish_seen_subcommand_from probe' -l quiet
complete -c frx-graph -n '__fish_seen_subcommand_from probe' -s q
complete -c frx-graph -n '__fish_seen_subcommand_from probe' -l help
complete -c frx-graph -n '__fish_seen_subcommand_from doctor' -l format -r -f -a 'text json'
complete -c frx-graph -n '__fish_seen_subcommand_from doctor' -l json
complete -c frx-graph -n '__fish_seen_subcommand_from doctor' -l measure
complete -c frx-graph -n '__fish_seen_subcommand_from doctor' -l quiet
complete -c frx-graph -n '__fish_seen_subcommand_from doctor' -s q
complete -c frx-graph -n '__fish_seen_subcommand_from doctor' -l help
complete -c frx-graph -n '__fish_seen_subcommand_from smoke-test' -l json
complete -c frx-graph -n '__fish_seen_subcommand_from smoke-test' -l quiet
complete -c frx-graph -n '__fish_seen_subcommand_from smoke-test' -s q
complete -c frx-graph -n '__fish_seen_subcommand_from smoke-test' -l help
complete -c frx-graph -n '__fish_seen_subcommand_from ncu-command' -l output -r
complete -c frx-graph -n '__fish_seen_subcommand_from ncu-command' -s o -r
complete -c frx-graph -n '__fish_seen_subcommand_from ncu-command' -l kernel-name -r
complete -c frx-graph -n '__fish_seen_subcommand_from ncu-command' -l launch-skip -r
complete -c frx-graph -n '__fish_seen_subcommand_from ncu-command' -l launch-count -r
complete -c frx-graph -n '__fish_seen_subcommand_from ncu-command' -l list
complete -c frx-graph -n '__fish_seen_subcommand_from ncu-command' -l json
complete -c frx-graph -n '__fish_seen_subcommand_from ncu-command' -l help
complete -c frx-graph -n '__fish_seen_subcommand_from completion; and not __fish_seen_subcommand_from bash zsh fish' -a 'bash zsh fish'
complete -c frx-graph -n '__fish_seen_subcommand_from completion; and not __fish_seen_subcommand_from bash zsh fish' -l install
complete -c frx-graph -n '__fish_seen_subcommand_from completion; and not __fish_seen_subcommand_from bash zsh fish' -l quiet
complete -c frx-graph -n '__fish_seen_subcommand_from completion; and not __fish_seen_subcommand_from bash zsh fish' -s q
complete -c frx-graph -n '__fish_seen_subcommand_from completion; and not __fish_seen_subcommand_from bash zsh fish' -l help
