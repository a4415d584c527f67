# `make` alone lists what there is.
.DEFAULT_GOAL := help
.PHONY: generate web notifiers package release reproducible workflow quick hostile provider faults chaos policy-test sops-test help build demo test race lint fmt fuzz bench docs docs-check integration library real cover check clean install uninstall guest machines clients readers replay tofu tofu-tools side-by-side

SHELL    := bash
GO       ?= go
FUZZTIME ?= 60s
SCHEDULES ?= 10000
TREES     ?= 1000
MUTANTS   ?= 2000
BIN      := bin/homestak-gitops
MAIN     := ./cmd/homestak-gitops

# Tools are run at these versions and never installed; go.mod stays ours alone.
GOLANGCI := $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
DEADCODE := $(GO) run golang.org/x/tools/cmd/deadcode@v0.52.0

# The commit is stamped into the binary where git can tell it, and left out where there
# is no git, no checkout, or one that belongs to somebody else.
VCS = $(shell git rev-parse --quiet --verify HEAD >/dev/null 2>&1 && echo true || echo false)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## the program, static, into bin/
	CGO_ENABLED=0 $(GO) build -buildvcs=$(VCS) -ldflags "-s -w" -o $(BIN) $(MAIN)

demo: build ## the story on an embedded simulator: no host, no rights, nothing installed
	$(BIN) demo

# All but the race detector compile in one way, so that one build cache serves the program,
# the tests and the linters: without C, as the program is released, and with -trimpath, so
# that a clone elsewhere finds in the cache what was compiled in this one.
export CGO_ENABLED ?= 0
export GOFLAGS := $(filter-out -trimpath,$(shell $(GO) env GOFLAGS)) -trimpath

# The heaps of tests are small, and are collected all the time: with more room a sweep of
# faults takes less.
test: export GOGC ?= 1000
race: export GOGC ?= 400
race: export HOMESTAK_FOREST_SCHEDULES ?= 2
race: export HOMESTAK_FLEET_SCHEDULES ?= 1
race: export HOMESTAK_CHAOS_SCHEDULES ?= 5
race: export HOMESTAK_IMPORT_HOSTS ?= 3
race: export HOMESTAK_FAULTS ?= few

# Half of the packages with long tests mostly wait, for tasks and for programs: three times as
# many run at once as there are processors, and of each several tests. The packages that
# take longest begin first, so that at the end none of them is at work alone. go test prints
# packages in their order; the others are another go test, so that their results are progress.
LONGEST := ./test/integration ./drivers/proxmox ./test/real ./cmd/homestak-gitops ./test/sim ./engine/source ./engine/source/serve
#
# make lint vets, with more than go test does.
#
# Tests of the whole program run one binary. As the name of a file that they look at it is
# part of what go test compares before it takes an old result.
# Machines with a Debian of their own have targets of their own: make guest, make machines.
# The limit of time is for a hang: on a machine that is busy, all takes as long as it takes.
test: export HOMESTAK_GUEST ?= off
test: export HOMESTAK_PROGRAM = $(CURDIR)/dist/test/homestak-gitops
test: ## all tests
	CGO_ENABLED=0 $(GO) build -buildvcs=false -ldflags "-s -w" -o $(HOMESTAK_PROGRAM).new $(MAIN)
	@cmp -s $(HOMESTAK_PROGRAM).new $(HOMESTAK_PROGRAM) || mv $(HOMESTAK_PROGRAM).new $(HOMESTAK_PROGRAM)
	@cpus=$$(getconf _NPROCESSORS_ONLN); run="$(GO) test -vet=off -parallel 8 -timeout 3h"; \
	$$run -p $$((2 * cpus)) $(LONGEST) & longest=$$!; \
	$$run -p $$cpus $$($(GO) list ./... | grep -vxF "$$($(GO) list $(LONGEST))"); others=$$?; \
	wait $$longest && exit $$others

# For the loop of editing: the tests that simulate no host and take less than a few seconds.
SLOW := ^./(engine/(agent|site|source|source/serve)|specserve|specserve/daemon|policy|drivers/ssh)$$
quick: ## build, vet, and the tests of packages that need no simulated host, in half a minute
	$(GO) build ./...
	$(GO) vet ./...
	$(GO) test -vet=off $$($(GO) list -test -f '{{.ImportPath}} {{join .Deps " "}}' ./... \
		| awk '$$1 ~ /\.test$$/ && $$0 !~ /homestak-gitops\/sim[ \/]/ {sub(/\.test$$/, "", $$1); sub(/^github.com\/homestak\/homestak-gitops/, ".", $$1); print $$1}' | grep -vE '$(SLOW)')

# Under the race detector all is five to ten times as slow, and only what runs side by side
# can race. So it watches the packages whose code or tests start goroutines, enter machines, or
# serve requests. A package that only guards what it shares is watched in the tests of those that
# share it. As in make test, most of the long ones wait, so twice as many packages run at once as
# there are processors, and those of RACEFIRST begin first. ALONE are the acceptance tests, which run built
# programs or take very long, and hcl/sops, which starts goroutines only beside the real sops, and policy, sim/debian and the importer, which agents and hosts use in the tests of other packages; of the stories those
# are watched in which two work on one
# thing. The tests of ONEBYONE make one request after the other, or let the accesses to a
# disk fail one after the other, and its scripts only read a site or write files. Those of MANYVALUES go one
# way again and again: TestEveryRequest… goes it for guests, the script apply for plans, trial
# for trees and for the demo,
# TestSchedule and TestFleetSchedule of test/forest and TestSchedule of test/chaos for long days, for what orders
# twice, for lost data, and for hosts below a hub, TestGit and TestConcurrency for large answers of a server of git,
# specserve for many connections, and TestS2ALoadThatTakesTooMuchIsEnded for what a
# commit does in a child. make test has all of them, and more schedules.
SIDEBYSIDE := ^\s*(defer )?go [a-zA-Z(]|drivertest|\.Go\(|InParallel|errgroup|httptest|net\.Listen|http\.Server
RACEFIRST := ./drivers/proxmox ./test/forest ./cmd/homestak-gitops ./cmd/homestak-gitops/trial ./engine/source ./specserve
ALONE := examples|hcl/sops|policy|sim/debian|drivers/proxmox/importer|test/(arch|bench|machines|nspawn|integration|real|sim)
ONEBYONE := ^(TestAnyHistory|TestAdoptMoveAndGiveUpInAnyOrder|TestDoctorScript|TestNegotiation|TestClassIsWhatPVEDoes|TestAnyObjects|TestRandomCDDrivesConverge|TestLineThatLeavesIsReverted|TestPendingOfVMIsReverted|TestOutputIsBounded|TestTestsAreLimited|TestEveryUnusableAnswer|TestSameSurface|TestGuestAgentInputIsBytes|TestS5DamageThatCannotBeMovedAside|TestS5AFailedAccessDuringAFetch|TestADiskThatIsFullForAMoment|TestKilledAtAnyChangeOfTheCopy|TestS5DamageRecovers|TestLargeFilesAreNotHeld|TestTheCopyStaysSmall|TestFetchesOfNothingNewLeaveNothing|TestDecisionsAreRemembered|TestS5AFailedAccessChangesNothing|TestSinceSaysWhatGitSays|TestKilledAtEveryCommand|TestAnIdleHourAsksNothingOfTheHost|TestHalfMadeClones|TestS1MutatedTags|TestS1AClaimIsNotProof|TestTwinOfAToken|TestRequestsPer(Clone|Import))$$|^TestScript$$/^(config|convert|docs|download|fmt|import.*|init|keyless|policy.*|sops|token|validate|version)$$|^TestMachine$$/^(OutputIsLimited|LongStdin)$$
MANYVALUES := ^(TestADriverThatRemembersSeesTheSame|TestAnyContainer|TestEveryKeyOfAContainer|TestN1AStuckTreeNamesTheCause|TestN1N2ATreeOfAHostAtLoopback|TestRandomGuestsConvergeOnce|TestRandomEditsWriteExactlyTheirKeys|TestContainerEditsWriteExactlyTheEditedKeys|TestRestartedInTheMiddleOfATaskOfAContainer|TestCutOffAtEveryCommand|TestDifferencesOfAChildAreReverted|TestADay|TestAnIdleDay|TestS2HostileSites|TestS3HostileRules|TestAPartitionForHours|TestST18RotationInATree|TestST19ParentAwayForHours|TestAWireThatOrdersTwice|TestEveryLawCanTrip|TestS4IdleConnections|TestS1Table|TestSlowClients|TestTotalTime|TestDiskThatLeavesBesideWhatIsRefused|TestMediumChangesHot|TestHubAndSpokes|TestHubAway|TestHostMoves|TestST22IdentityGoneInATree|TestST21LostDataFolderInATree|TestAChildThatLostItsData|TestA(Parent|Child)FromAnOldBackup|TestAChildWithATokenOfAnotherTime|TestST11WithdrawalInAChildOfAChild)$$|^TestScript$$/^(badhost|demo|governance|harmful|observe|obstacles|output|ownership|packs|plan|testtree)$$|^TestATreeThatFailsIsRemoved$$/^(a_variable_of_the_command_line|a_child_that_is_no_Proxmox_VE)$$
#
# -cpu 1: in a bubble of synctest, timers that fire on two processors at once share a context
# of the detector, which crashes (golang/go#78156). What the detector reports does not depend
# on the number of processors; packages still run side by side.
race: ## all that runs side by side, under the race detector (needs gcc)
	CGO_ENABLED=1 $(GO) test -vet=off -timeout 30m -race -cpu 1 -p $$((2 * $$(getconf _NPROCESSORS_ONLN))) -skip '$(ONEBYONE)|$(MANYVALUES)' $$({ printf '%s\n' $(RACEFIRST); grep -lEr --include=*.go --exclude-dir=testdata '$(SIDEBYSIDE)' . | xargs -n 1 dirname | sort -u | grep -vE '^\./($(ALONE))$$'; } | awk '!seen[$$0]++')
	CGO_ENABLED=1 $(GO) test -vet=off -race -cpu 1 -run 'OneWriter|Interrupted|SideBySide|NotWell' ./test/integration

# Among the linters is govet, with all that go vet has.
lint: ## go vet and some thirty linters, and code that nothing reaches
	$(GOLANGCI) run ./...
	@dead=$$($(DEADCODE) -test ./...) && if [ -n "$$dead" ]; then echo "$$dead"; exit 1; fi

fmt: ## bring the Go files into the one layout
	$(GOLANGCI) fmt ./...

fuzz: ## every fuzz target for FUZZTIME (60s)
	@set -e; for pkg in $$($(GO) list ./...); do \
		for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
			echo "== $$target in $$pkg for $(FUZZTIME)"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1x $$pkg; \
		done; \
	done

policy-test: ## every test of policies under ours and under the real opa: same results
	GOBIN=$(CURDIR)/dist/bin $(GO) install github.com/open-policy-agent/opa@v1.22.0
	PATH=$(CURDIR)/dist/bin:$$PATH $(GO) test -count=1 -v -run TestOPAAgrees ./policy

sops-test: ## files of secrets under ours and under the real sops, both ways, and MUTANTS (2,000) changed ones
	GOBIN=$(CURDIR)/dist/bin $(GO) install github.com/getsops/sops/v3/cmd/sops@v3.13.3
	PATH=$(CURDIR)/dist/bin:$$PATH HOMESTAK_SOPS_MUTANTS=$(MUTANTS) $(GO) test -count=1 -v -run TestRealSops ./hcl/sops

chaos: ## SCHEDULES (10,000) seeded schedules of edits, hands, faults and crashes, and TREES (1,000) of trees of agents
	set -o pipefail; GOGC=400 HOMESTAK_CHAOS_SCHEDULES=$(SCHEDULES) $(GO) test -count=1 -timeout 0 -v -run 'TestSchedule$$' ./test/chaos | grep --line-buffered -vE '^ *(===|--- PASS)'
	set -o pipefail; GOGC=400 HOMESTAK_FOREST_SCHEDULES=$(TREES) $(GO) test -count=1 -timeout 0 -v -run 'TestSchedule$$' ./test/forest | grep --line-buffered -vE '^ *(===|--- PASS)'

faults: ## every way to fail at every request of every story, where make test takes samples
	HOMESTAK_FAULTS=all $(GO) test -count=1 -timeout 60m -run 'MayFail|EveryFault' ./drivers/proxmox
	HOMESTAK_FAULTS=all $(GO) test -count=1 -timeout 60m -run 'TestKilledAtEveryStep|TestALostDataFolderInTheMiddle|TestLostAnswersOfContainers|TestST14SimulatedPushThatIsCutOff|TestLifeOfAVM' ./test/integration

hostile: ## hostile sites and rules under the limits that are in use, also pushed to an agent (25 minutes)
	HOMESTAK_FULL_LIMITS=1 $(GO) test -count=1 -timeout 60m -v -run 'TestS2HostileSites|TestS3HostileRules' ./engine/site
	HOMESTAK_FULL_LIMITS=1 $(GO) test -count=1 -timeout 60m -v -run 'TestS2S3TheAgent' ./test/integration

bench: ## speed against the goals, each beside its floor (minutes; fails for no figure)
	$(GO) test -run '^$$' -bench . -timeout 30m ./test/bench

# Markup is compiled to Go that is committed, so that a build needs nothing but Go.
TEMPL := $(GO) run github.com/a-h/templ/cmd/templ@v0.3.977

generate: ## the Go of the page from its markup
	cd engine/web && $(TEMPL) generate -f page.templ

BROWSER ?= /usr/bin/chromium
web: build ## every view of the page in a real browser (node, chromium: apt-get install chromium)
	mkdir -p dist/web && cp test/web/package.json test/web/package-lock.json test/web/page.mjs dist/web/
	cd dist/web && npm ci --no-audit --no-fund
	HOMESTAK_BROWSER=$(BROWSER) HOMESTAK_PROGRAM=$(CURDIR)/$(BIN) $(GO) test -count=1 -v -timeout 30m -run TestBrowser ./engine/web

docs: build ## docs/reference.md and docs/commands.md from the code; man pages into dist/docs/man
	$(BIN) docs dist/docs
	cp dist/docs/reference.md dist/docs/commands.md docs/

docs-check: build ## fail if make docs or make generate would change anything
	cd engine/web && $(TEMPL) generate -stdout -f page.templ | diff -u page_templ.go -
	$(BIN) docs dist/docs
	diff -u docs/reference.md dist/docs/reference.md
	diff -u docs/commands.md dist/docs/commands.md

integration: ## the acceptance stories, one line each
	$(GO) test -count=1 -v $(if $(ONLY),-run '$(ONLY)') ./test/integration

INSTALLED := ^TestInstalled|^TestR8
guest: ## the installed units on a real Debian with systemd (root, systemd-container, debootstrap)
	HOMESTAK_GUEST=require $(GO) test -count=1 -run '$(INSTALLED)|^TestNothingStays|^TestTheMirror' ./test/machines ./test/nspawn

# All of it takes more than ten minutes; ONLY is a pattern for a part of it. The guests wait
# for systemd more than they work: four are up at once.
machines: ## specs on a real Debian with systemd, sshd and apt (as guest)
	HOMESTAK_GUEST=require $(GO) test -count=1 -timeout 60m -parallel 4 $(if $(V),-v) $(if $(ONLY),-run '$(ONLY)',-skip '$(INSTALLED)') ./test/machines
	HOMESTAK_GUEST=require $(GO) test -count=1 -run 'TestST0[23]Push' $(if $(V),-v) ./test/integration

replay: build ## the recordings of a real Proxmox VE (HOMESTAK_RECORDINGS) against the simulator, also as a process
	set -o pipefail; $(GO) test -count=1 -v -run 'TestReplay|TestRecordings' ./test/sim | grep -v '^ *--- PASS\|^=== '

# HOST is a name, an address or a URL. FINGERPRINT pins its certificate, which is otherwise
# trusted as it shows itself. NODE, STORAGE, BRIDGE and RANGE=FROM-TO choose what the tests
# use; KVM=0 is for a host without hardware virtualisation.
real: ## the stories that one node allows, on a real host: HOST=… TOKEN='user@realm!name=…'
	@test -n "$(HOST)" -a -n '$(TOKEN)' || { echo "usage: make real HOST=ADDRESS TOKEN='user@realm!name=SECRET' [FINGERPRINT=…] [NODE=…] [STORAGE=…] [BRIDGE=…] [RANGE=51000-51099] [KVM=0]"; exit 2; }
	@HOMESTAK_REAL_HOST='$(HOST)' HOMESTAK_REAL_TOKEN='$(TOKEN)' HOMESTAK_REAL_FINGERPRINT='$(FINGERPRINT)' HOMESTAK_REAL_NODE='$(NODE)' \
		HOMESTAK_REAL_STORAGE='$(STORAGE)' HOMESTAK_REAL_BRIDGE='$(BRIDGE)' HOMESTAK_REAL_RANGE='$(RANGE)' HOMESTAK_REAL_KVM='$(KVM)' \
		$(GO) test -count=1 -timeout 2h -v -run 'TestReal$$' ./test/real

library: ## the own integration tests of go-proxmox, from the module cache, against the simulator
	HOMESTAK_LIBRARY_TESTS=1 $(GO) test -count=1 -v -run TestLibraryIntegration ./test/sim

clients: ## other people's clients against the simulator (ansible, python3-proxmoxer, fence-agents)
	HOMESTAK_CLIENTS=require $(GO) test -count=1 -run "TestAnsible|TestFence" ./test/sim

readers: ## the outputs of the example site with the programs that read them (openssh-client, ansible-core, prometheus, bind9-utils)
	HOMESTAK_READERS=require $(GO) test -count=1 -v -run TestReaders ./hcl

# Both are built where the module cache has them, as the main modules that they are: tofu
# replaces a library of its own, and go install takes no module that does.
TOFU   := github.com/opentofu/opentofu@v1.10.6
BPG    := github.com/bpg/terraform-provider-proxmox@v0.111.1
SOURCE  = $$($(GO) -C / mod download -json $(1) | sed -n 's/^.*"Dir": "\(.*\)".*$$/\1/p')

tofu-tools:
	mkdir -p dist/bin
	$(GO) -C $(call SOURCE,$(TOFU)) build -o $(CURDIR)/dist/bin/tofu ./cmd/tofu
	$(GO) -C $(call SOURCE,$(BPG)) build -o $(CURDIR)/dist/bin/terraform-provider-proxmox .

tofu: tofu-tools ## OpenTofu and its provider bpg/proxmox against the simulator (builds both: minutes)
	HOMESTAK_TOFU=$(CURDIR)/dist/bin $(GO) test -count=1 -timeout 30m -v -run TestTofu ./test/sim

# Gitea is built in a copy without the service for its runners and the imports from GitLab and another Gitea. These need modules that are not
# served; the protocol of runners is, in an earlier version.
GITEA    := code.gitea.io/gitea@v1.27.3
RUNNERS  := code.gitea.io/actions-proto-go@v0.4.0
DENDRITE := github.com/matrix-org/dendrite@v0.13.8
notifiers: ## messages to real servers: Alertmanager, aiosmtpd, Gitea, Dendrite (prometheus-alertmanager, python3-aiosmtpd; builds two: minutes)
	rm -rf dist/notifiers && mkdir -p dist/notifiers
	cp -R --no-preserve=mode $(call SOURCE,$(GITEA)) dist/notifiers/gitea-files
	cp -R --no-preserve=mode $(call SOURCE,$(RUNNERS)) dist/notifiers/runners
	grep -rl code.gitea.io dist/notifiers/runners | xargs sed -i 's|code.gitea.io/actions-proto-go|gitea.dev/actions-proto-go|'
	cd dist/notifiers/gitea-files && rm services/migrations/gitea_downloader.go services/migrations/gitlab.go && sed -i /runner/d routers/api/actions/actions.go && \
		$(GO) mod edit -replace gitea.dev/actions-proto-go=../runners && $(GO) build -mod=mod -o ../gitea .
	$(GO) -C $(call SOURCE,$(DENDRITE)) build -o $(CURDIR)/dist/notifiers/ ./cmd/dendrite ./cmd/generate-keys ./cmd/generate-config
	HOMESTAK_NOTIFIERS=$(CURDIR)/dist/notifiers $(GO) test -count=1 -v -timeout 30m -run TestRealReceivers ./engine/notify

provider: tofu-tools ## the own acceptance tests of that provider against the simulator (half an hour)
	rm -rf dist/provider && mkdir -p dist/provider
	cd $(call SOURCE,$(BPG)) && for dir in $$(grep -rlE '^//go:build acceptance' --include='*_test.go' . | xargs -n 1 dirname | sort -u); do \
		$(GO) test -c -tags acceptance -o $(CURDIR)/dist/provider/$$(echo $$dir | sed 's|^\./||; s|/|_|g') $$dir || exit; done
	HOMESTAK_TOFU=$(CURDIR)/dist/bin HOMESTAK_PROVIDER=$(CURDIR)/dist/provider $(GO) test -count=1 -timeout 90m -v -run TestProvider ./test/sim

side-by-side: tofu-tools ## no-change plan and clones by OpenTofu with bpg/proxmox and by ours (minutes)
	HOMESTAK_TOFU=$(CURDIR)/dist/bin $(GO) test -count=1 -timeout 30m -run '^$$' -bench SideBySide ./test/bench

cover: ## how much of each package the tests reach
	@mkdir -p dist
	$(GO) test -coverpkg=./... -coverprofile=dist/cover.out ./...
	$(GO) tool cover -func=dist/cover.out | tail -n 1

check: lint test race docs-check ## all that must hold before a commit

install: ## program, units and example into PREFIX (/usr/local) below DESTDIR; first make build
	systemd/install.sh $(BIN)

uninstall: ## take them away again; what it made and what you wrote stays
	systemd/install.sh --uninstall

# Versions of packages begin with a digit. One that is not released sorts before the next that is.
VERSION ?= 0.0.0~$(shell git log -1 --date=format:%Y%m%d%H%M --format=%cd.%h)
ARCHES  ?= amd64 arm64
package: ## packages of Debian and archives for ARCHES (amd64 arm64), into dist/package
	@set -e; for arch in $(ARCHES); do GO=$(GO) systemd/package/package.sh $(VERSION) $$arch dist/package; done

# GPG_KEY is a file with the private OpenPGP key of the apt repository, MINISIGN_KEY one with that of the checksums. URL is
# where the folder apt will be served.
release: ## all files of VERSION, into dist/release/VERSION; signed with GPG_KEY=FILE and MINISIGN_KEY=FILE
	rm -rf dist/release/$(VERSION)
	GO=$(GO) ARCHES='$(ARCHES)' GPG_KEY='$(GPG_KEY)' MINISIGN_KEY='$(MINISIGN_KEY)' URL='$(URL)' systemd/package/release.sh $(VERSION) dist/release/$(VERSION)

reproducible: ## fail if two clones in two folders make different packages
	GO=$(GO) systemd/package/reproducible.sh $(firstword $(ARCHES))

# The first checks the form of the workflow, with shellcheck if it is there.
workflow: ## the steps of the release workflow in a clone, without the forge (gpg, minisign; minutes)
	$(GO) run github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
	HOMESTAK_WORKFLOW=1 $(GO) test -count=1 -v -timeout 1h -run TestTheReleaseWorkflow ./systemd

clean: ## remove what was built
	rm -rf bin dist
