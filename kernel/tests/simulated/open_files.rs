//! How many files are open, and for how long they are open for writing, in the simulated machine.

use std::sync::Arc;
use std::time::Duration;

use kernel::tree::OpenFiles;
use machine::Errno;
use machine::tree::TreeCall;
use sim::{OpClass, TreeConfig};
use testkit::scene::files::{context, file, open, open_within, read, root, served, server, stable, write};
use testkit::scene::run;

#[test]
fn what_clients_have_read_the_host_can_execute() {
    served(8, 100, async move |cpu, tree, seen, id| {
        let (node, program) = file(&cpu, &tree, "program").await;
        write(&cpu, &tree, &program, 0, &[1; 5000], stable()).await.expect("durable");
        cpu.sleep(Duration::from_millis(1500)).await;
        assert_eq!(seen.execute_in_tree(id, "program"), Ok(()), "written, committed and left alone");
        assert!(read(&cpu, &tree, &program, 0, 10_000).await.expect("read") == [1; 5000]);
        for _ in 0..2 {
            let refused = write(&cpu, &tree, &program, 0, &[2; 5000], stable()).await;
            assert_eq!(refused, Err(Errno(libc::ETXTBSY)), "at once, not when it is written back");
        }
        seen.end_execution_in_tree(id, "program");
        write(&cpu, &tree, &program, 0, &[3; 5000], context()).await.expect("the refusal was not for ever");
        assert_eq!(seen.execute_in_tree(id, "program"), Err(Errno(libc::ETXTBSY)));
        cpu.sleep(Duration::from_secs(4)).await;
        assert_eq!(seen.execute_in_tree(id, "program"), Ok(()), "made durable though nobody asked for a commit");
        assert!(seen.tree_durable_content(id, "program").as_deref() == Some(&[3; 5000][..]));
        seen.end_execution_in_tree(id, "program");
        drop(program);
        tree.close(&cpu).await.expect("flushed");
        let tree = open(&seen, &cpu, id, 100);
        let program = tree.file(&cpu, node).await.expect("it is a regular file");
        assert!(read(&cpu, &tree, &program, 0, 10_000).await.expect("read") == [3; 5000]);
        assert_eq!(seen.execute_in_tree(id, "program"), Ok(()), "it was opened for reading alone");
    });
}

#[test]
fn all_trees_have_one_budget_of_open_files_and_give_way_to_each_other_also_what_is_dirty() {
    let (world, host, id) = server(9);
    let other = world.add_tree(host.id, TreeConfig::new());
    let seen = world.clone();
    run(&world, &host, async move |cpu| {
        let budget = OpenFiles::new(8);
        let trees = [id, other].map(|tree| open_within(&seen, &cpu, tree, &budget));
        for number in 0..60 {
            for tree in &trees {
                let (_, file) = file(&cpu, tree, &format!("file{number}")).await;
                write(&cpu, tree, &file, 0, &[number; 5000], context()).await.expect("cached");
                drop(file);
                assert!(budget.open() <= 8, "{} are open", budget.open());
            }
        }
        for number in 0..60 {
            for tree in &trees {
                let (_, file) = file(&cpu, tree, &format!("file{number}")).await;
                assert!(read(&cpu, tree, &file, 0, 10_000).await.expect("read") == [number; 5000]);
            }
        }
        for tree in &trees {
            tree.close(&cpu).await.expect("flushed");
        }
        assert_eq!(budget.open(), 0);
    });
}

#[test]
fn a_file_that_the_host_removes_is_closed_when_that_is_seen() {
    for (is_asked, is_dirty) in [(true, false), (true, true), (false, false), (false, true)] {
        let (world, host, id) = server(13);
        let seen = world.clone();
        run(&world, &host, async move |cpu| {
            let budget = OpenFiles::new(100);
            let tree = open_within(&seen, &cpu, id, &budget);
            let (_, stays) = file(&cpu, &tree, "stays").await;
            let (_, removed) = file(&cpu, &tree, "removed").await;
            write(&cpu, &tree, &removed, 0, &[7; 5000], stable()).await.expect("durable");
            if is_dirty {
                write(&cpu, &tree, &removed, 0, &[8; 5000], context()).await.expect("cached");
            }
            let dir = root(&cpu, &tree).await;
            let call = TreeCall::Remove { dir, name: "removed".into() };
            seen.call_tree(id, None, &call).expect("removed beside");
            cpu.sleep(Duration::from_secs(1)).await;
            let told = if is_asked { tree.refresh(&cpu, &removed).await.map(drop) } else { Err(Errno::STALE) };
            assert_eq!(told, Err(Errno::STALE));
            if !is_asked || is_dirty {
                drop(removed);
                assert_eq!(budget.open(), 2, "it cannot be known yet, or must be written first");
                cpu.sleep(Duration::from_secs(80)).await;
            }
            assert_eq!(budget.open(), 1, "asked: {is_asked}, dirty: {is_dirty}");
            tree.refresh(&cpu, &stays).await.expect("still there");
            tree.close(&cpu).await.expect("flushed");
        });
    }
}

#[test]
fn files_in_use_are_not_closed_and_those_that_cannot_be_written_do_not_stop_others() {
    let (world, host, id) = server(10);
    let seen = world.clone();
    run(&world, &host, async move |cpu| {
        let budget = OpenFiles::new(4);
        let tree = open_within(&seen, &cpu, id, &budget);
        let mut used = Vec::new();
        for number in 0..10 {
            used.push(file(&cpu, &tree, &format!("used{number}")).await);
        }
        assert_eq!(budget.open(), 10, "all are in use");
        for (node, used) in &used {
            assert!(tree.open_file(*node).is_some_and(|open| Arc::ptr_eq(&open, used)));
        }
        drop(used);
        let (_, stuck) = file(&cpu, &tree, "stuck").await;
        assert_eq!(budget.open(), 4, "given back as soon as they may be");
        write(&cpu, &tree, &stuck, 0, &[7; 5000], context()).await.expect("cached");
        drop(stuck);
        seen.fail_next_in_tree(id, OpClass::Write, u32::MAX, Errno::IO);
        for number in 0..10 {
            file(&cpu, &tree, &format!("other{number}")).await;
        }
        assert!(budget.open() <= 5, "{} are open", budget.open());
        seen.heal_tree(id);
        let (_, stuck) = file(&cpu, &tree, "stuck").await;
        assert!(read(&cpu, &tree, &stuck, 0, 10_000).await.expect("read") == [7; 5000], "what was not written stayed");
    });
}

#[test]
fn a_tree_whose_files_are_all_in_use_gets_room_from_another() {
    let (world, host, id) = server(12);
    let other = world.add_tree(host.id, TreeConfig::new());
    let seen = world.clone();
    run(&world, &host, async move |cpu| {
        let budget = OpenFiles::new(4);
        let [busy, idle] = [id, other].map(|tree| open_within(&seen, &cpu, tree, &budget));
        for number in 0..4 {
            file(&cpu, &idle, &format!("idle{number}")).await;
        }
        let mut used = Vec::new();
        for number in 0..8 {
            used.push(file(&cpu, &busy, &format!("used{number}")).await);
        }
        assert_eq!(budget.open(), 8, "only what is used");
        for number in 0..8 {
            file(&cpu, &idle, &format!("more{number}")).await;
            assert_eq!(budget.open(), 9, "only what is used, and the last one");
        }
    });
}

#[test]
fn where_the_host_has_no_descriptor_left_others_are_closed_for_the_next_file() {
    let (world, host, id) = server(11);
    let seen = world.clone();
    run(&world, &host, async move |cpu| {
        let budget = OpenFiles::new(100);
        let tree = open_within(&seen, &cpu, id, &budget);
        for number in 0..4 {
            file(&cpu, &tree, &format!("idle{number}")).await;
        }
        let (_, used) = file(&cpu, &tree, "used").await;
        // To write to it, it is opened once more.
        seen.fail_next_in_tree(id, OpClass::Call, 3, Errno(libc::EMFILE));
        write(&cpu, &tree, &used, 0, &[7; 5000], context()).await.expect("there is room again");
        assert_eq!(budget.open(), 2);
        let (_, other) = file(&cpu, &tree, "other").await;
        seen.fail_next_in_tree(id, OpClass::Call, 3, Errno(libc::ENFILE));
        let refused = write(&cpu, &tree, &other, 0, &[8; 5000], context()).await;
        assert_eq!(refused, Err(Errno(libc::ENFILE)), "said, when there is nothing more to close");
        seen.heal_tree(id);
        write(&cpu, &tree, &other, 0, &[8; 5000], context()).await.expect("and not for ever");
    });
}

#[test]
fn an_open_closes_other_files_whichever_of_its_calls_finds_no_descriptor() {
    for failures in 1..=3 {
        let (world, host, id) = server(12);
        let seen = world.clone();
        run(&world, &host, async move |cpu| {
            let budget = OpenFiles::new(1);
            let tree = open_within(&seen, &cpu, id, &budget);
            let (node, _) = file(&cpu, &tree, "closed by the next one").await;
            file(&cpu, &tree, "idle").await;
            budget.set_max(100);
            for number in 0..4 {
                file(&cpu, &tree, &format!("idle{number}")).await;
            }
            let before = budget.open();
            seen.fail_next_in_tree(id, OpClass::Call, failures, Errno(libc::EMFILE));
            tree.file(&cpu, node).await.expect("opened in place of others");
            assert_eq!(budget.open(), before + 1 - failures as usize);
        });
    }
}
