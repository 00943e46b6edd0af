# `make run` builds Awase and serves a disk and a directory. `make test` runs all tests. As root on Debian or a derivative, both
# install missing packages; otherwise they name them.

PREFIX ?= /usr/local
DESTDIR ?=
ARGS ?=
CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)

# program=package[,package]; python3:module=package
BUILD_NEEDS := cc=gcc
TEST_NEEDS := nbdinfo=libnbd-bin nbdcopy=libnbd-bin python3:nbd=python3-libnbd qemu-img=qemu-utils mke2fs=e2fsprogs \
    qemu-system-x86_64=qemu-system-x86 busybox=busybox-static nbd-client=nbd-client nfs-ls=libnfs-utils \
    git=git tcc=tcc make=make chromium=chromium mkfs.xfs=xfsprogs mkfs.btrfs=btrfs-progs losetup=mount umount=mount \
    psql=postgresql-client pgbench=postgresql python3:psycopg2=python3-psycopg2 /usr/share/java/postgresql.jar=libpostgresql-jdbc-java \
    clang=clang wasm-ld=lld java=default-jdk-headless unshare=util-linux setpriv=util-linux ip=iproute2 rpcbind=rpcbind rpcinfo=rpcbind showmount=nfs-common etcd=etcd-server \
    fusermount3=fuse3 ganesha.nfsd=nfs-ganesha,nfs-ganesha-vfs
BENCH_NEEDS := fio=fio nbdkit=nbdkit nbdcopy=libnbd-bin qemu-nbd=qemu-utils qemu-img=qemu-utils
BENCH_FILES_NEEDS := cc=gcc /usr/include/nfsc/libnfs.h=libnfs-dev ganesha.nfsd=nfs-ganesha,nfs-ganesha-vfs rpcbind=rpcbind mkfs.ext4=e2fsprogs losetup=mount \
    qemu-system-x86_64=qemu-system-x86 busybox=busybox-static
BENCH_MOUNT_NEEDS := cc=gcc /usr/include/nfsc/libnfs.h=libnfs-dev fusermount3=fuse3 umount=mount sshfs=sshfs rclone=rclone \
    /usr/lib/openssh/sftp-server=openssh-sftp-server git=git tcc=tcc make=make
# Duration of `make test-long`, without compilation.
MINUTES ?= 60
# File in which tests record what they skipped, and why.
SKIPPED := $(abspath $(TARGET))/skipped

.PHONY: run build programs test check ready audit clients test-long bench bench-disks bench-files bench-mount bench-lab bench-live docs install install-lab clean

run: build
	exec $(TARGET)/release/awase serve $(ARGS)

build:
	@scripts/need-rust
	@scripts/need $(BUILD_NEEDS)
	$(CARGO) build --release --package awase
	@$(TARGET)/release/awase man --directory $(TARGET)/man
	@mkdir -p $(TARGET)/completions
	@for shell in bash zsh fish; do \
	    $(TARGET)/release/awase completions $$shell > $(TARGET)/completions/$$shell || exit; \
	done

# The programs that are shipped, from their sources; needs the target wasm32-unknown-unknown (rustup target add).
programs:
	@scripts/need-rust
	$(CARGO) build --profile program --target wasm32-unknown-unknown --package awase-program --no-default-features \
	    --example bank --example tpcb --example tpcc --example oltp
	cd $(TARGET)/wasm32-unknown-unknown/program/examples && cp bank.wasm tpcb.wasm tpcc.wasm oltp.wasm $(CURDIR)/program/

# Unless what is compiled is linted as it is (scripts/lint-too).
LINT := $(if $(filter %/lint-too,$(RUSTC_WORKSPACE_WRAPPER)),true,$(CARGO) clippy --workspace --all-targets -- -D warnings)
TESTS := AWASE_SKIPPED=$(SKIPPED) $(CARGO) test --workspace && \
    AWASE_SKIPPED=$(SKIPPED) AWASE_ENGINE=threads $(CARGO) test --workspace --test clients --test directories

# Skipped tests are listed at the end; with AWASE_SKIPS_FAIL=1 they fail. Many tests wait, and leave the lints time beside them.
test: ready
	$(CARGO) test --workspace --no-run
	scripts/beside "$(TESTS)" "$(LINT)"
	@scripts/skipped $(SKIPPED)
	@echo "not checked here: known vulnerabilities of dependencies; make audit does"

# Static checks: format and lints.
check: ready
	$(LINT)

# What tests and lints need, and the format.
ready:
	@scripts/need-rust
	@scripts/need-wasm
	@scripts/need $(BUILD_NEEDS) $(TEST_NEEDS)
	@mkdir -p $(TARGET) && rm -f $(SKIPPED)
	$(CARGO) fmt --all --check

# Only the tests with real clients (also part of `make test`).
clients:
	@scripts/need $(BUILD_NEEDS) $(TEST_NEEDS)
	$(CARGO) test --package awase --test clients --test directories --test outside \
	    --test front --test guest --test terminals

# Known vulnerabilities of dependencies, from the database at github.com/RustSec. Licences and sources are tested by `make test`.
audit:
	@scripts/need-rust
	command -v cargo-deny >/dev/null || $(CARGO) install --locked cargo-deny
	$(CARGO) deny check advisories

# All tests in their long forms, in a given time: MINUTES=20 make test-long
test-long:
	@scripts/need-rust
	@scripts/need $(BUILD_NEEDS) $(TEST_NEEDS)
	@mkdir -p $(TARGET) && rm -f $(SKIPPED)
	CARGO="$(CARGO)" AWASE_SKIPPED=$(SKIPPED) scripts/test-long $(MINUTES)
	@scripts/skipped $(SKIPPED)

# About an hour each, on an otherwise idle machine.
bench: bench-disks bench-files

bench-disks:
	@scripts/need-rust
	@scripts/need $(BUILD_NEEDS) $(BENCH_NEEDS)
	$(CARGO) build --release --workspace
	$(TARGET)/release/awase-lab bench disks $(ARGS)

# Compared with NFS-Ganesha; as root.
bench-files:
	@scripts/need-rust
	@scripts/need $(BUILD_NEEDS) $(BENCH_FILES_NEEDS)
	$(CARGO) build --release --workspace
	$(TARGET)/release/awase-lab bench nfs $(ARGS)

# Mounts beside other clients; as root, some minutes.
bench-mount:
	@scripts/need-rust
	@scripts/need $(BUILD_NEEDS) $(BENCH_MOUNT_NEEDS)
	$(CARGO) build --release --workspace
	$(TARGET)/release/awase-lab bench mount $(ARGS)

# The simulator's speed and the duration of all experiments: a few minutes.
bench-lab:
	@scripts/need-rust
	@scripts/need $(BUILD_NEEDS)
	$(CARGO) build --release --workspace
	$(TARGET)/release/awase-lab bench lab $(ARGS)

# Every switch on this machine, and the figures to reach: some minutes, on an otherwise idle machine.
bench-live:
	@scripts/need-rust
	@scripts/need $(BUILD_NEEDS)
	$(CARGO) build --release --workspace
	$(TARGET)/release/awase-lab bench live $(ARGS)

docs: build
	$(TARGET)/release/awase config --reference > docs/configuration.md

# Whoever installs and has no Rust toolchain, as root often, installs what `make build` has made.
install:
	@if scripts/need-rust 2>/dev/null || [ ! -e $(TARGET)/completions/fish ]; then $(MAKE) build; else \
	    echo "without a Rust toolchain: installs what was built at $$(date -r $(TARGET)/release/awase '+%F %R')"; fi
	install -D -m 755 $(TARGET)/release/awase $(DESTDIR)$(PREFIX)/bin/awase
	install -d $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 644 $(TARGET)/man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1/
	install -D -m 644 $(TARGET)/completions/bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/awase
	install -D -m 644 $(TARGET)/completions/zsh $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_awase
	install -D -m 644 $(TARGET)/completions/fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/awase.fish
	install -D -m 644 packaging/awase.toml $(DESTDIR)$(PREFIX)/share/doc/awase/awase.toml
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	install -m 644 packaging/awase.service packaging/awase.socket packaging/awase-mount@.service $(DESTDIR)$(PREFIX)/lib/systemd/system/
	sed -i 's|@PREFIX@|$(PREFIX)|' $(DESTDIR)$(PREFIX)/lib/systemd/system/awase.service
	sed -i 's|/usr/bin/awase|$(PREFIX)/bin/awase|' $(DESTDIR)$(PREFIX)/lib/systemd/system/awase-mount@.service
	install -D -m 755 packaging/mount.awase $(DESTDIR)$(PREFIX)/sbin/mount.awase

# The program that `awase lab` runs.
install-lab:
	@scripts/need-rust
	@scripts/need $(BUILD_NEEDS)
	$(CARGO) build --release --package awase-lab
	install -D -m 755 $(TARGET)/release/awase-lab $(DESTDIR)$(PREFIX)/bin/awase-lab
	install -d $(DESTDIR)$(PREFIX)/share/man/man1
	$(TARGET)/release/awase-lab man --directory $(DESTDIR)$(PREFIX)/share/man/man1

clean:
	$(CARGO) clean
