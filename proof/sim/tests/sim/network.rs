//! Guarantees of connections, and how they end.

use machine::{Connection, Errno};
use sim::{HostId, NetworkConfig, Step, World};

use crate::rig::{Side, run, run_slice_of};

const PORT: u16 = 10809;

struct Pair {
    world: World,
    server_host: HostId,
    client: Side,
    server: Side,
    near: Connection,
    far: Connection,
}

impl Pair {
    fn new(seed: u64, config: NetworkConfig) -> Self {
        let world = World::new(seed);
        world.set_network(config);
        let (server_host, client_host) = (world.add_host("server"), world.add_host("client"));
        let mut server = Side::new(&world, server_host, 0);
        let mut client = Side::new(&world, client_host, 0);
        let listener = world.listen(server_host, PORT);
        let near = world.connect(client_host, server_host, PORT).unwrap();
        let accept = server.accept(listener);
        run(&world, &mut [&mut server, &mut client]);
        let far = Connection(server.take(accept).0.unwrap() as u32);
        Pair { world, server_host, client, server, near, far }
    }

    fn whole(seed: u64) -> Self {
        let config = NetworkConfig { short_receive_permille: 0, short_send_permille: 0, ..NetworkConfig::default() };
        Pair::new(seed, config)
    }

    fn run(&mut self) {
        run(&self.world, &mut [&mut self.server, &mut self.client]);
    }

    fn received(&mut self) -> (Result<u64, Errno>, Vec<u8>) {
        let token = self.client.receive(self.near, 4096);
        self.run();
        self.client.take(token)
    }

    fn sent_back(&mut self, bytes: Vec<u8>) -> Result<u64, Errno> {
        let token = self.client.send(self.near, bytes);
        self.run();
        self.client.take(token).0
    }
}

/// Sends `len` bytes from client to server in small transfers; returns whether any send and any receive was shortened.
fn pump(pair: &mut Pair, len: usize) -> (bool, bool) {
    let bytes: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
    let (mut sent, mut got) = (0, Vec::new());
    let (mut short_send, mut short_receive) = (false, false);
    let mut sending = pair.client.send(pair.near, bytes[..len.min(30_000)].to_vec());
    let mut receiving = pair.server.receive(pair.far, 5000);
    while let Step::Processor(host, id) = pair.world.step() {
        run_slice_of(&mut [&mut pair.server, &mut pair.client], host, id);
        if pair.client.outcomes.contains_key(&sending) {
            let (outcome, asked) = pair.client.take(sending);
            let n = outcome.unwrap() as usize;
            assert!(n > 0 && n <= asked.len());
            short_send |= n < asked.len();
            sent += n;
            pair.client.outcomes.remove(&sending);
            if sent < len {
                sending = pair.client.send(pair.near, bytes[sent..len.min(sent + 30_000)].to_vec());
            } else {
                pair.client.machine.shutdown(pair.near);
            }
        }
        if pair.server.outcomes.contains_key(&receiving) {
            let (outcome, memory) = pair.server.take(receiving);
            pair.server.outcomes.remove(&receiving);
            let n = outcome.unwrap() as usize;
            got.extend_from_slice(&memory[..n]);
            assert!(memory[n..].iter().all(|byte| *byte == 0xee), "memory beyond the received bytes was changed");
            short_receive |= n < memory.len();
            if n > 0 {
                receiving = pair.server.receive(pair.far, 5000);
            }
        }
    }
    assert_eq!(got, bytes, "{:?}", pair.world);
    (short_send, short_receive)
}

#[test]
fn bytes_arrive_complete_and_in_order_however_transfers_are_shortened() {
    for seed in 0..60 {
        pump(&mut Pair::new(seed, NetworkConfig::drawn(seed)), 200_000);
    }
    let cut = NetworkConfig { short_receive_permille: 500, short_send_permille: 500, ..NetworkConfig::default() };
    assert_eq!(pump(&mut Pair::new(1, cut), 200_000), (true, true));
}

#[test]
fn a_sender_waits_when_the_buffer_is_full() {
    let mut pair = Pair::whole(1);
    assert_eq!(pair.sent_back(vec![1; 300_000]), Ok(256 * 1024));
    let waiting = pair.client.send(pair.near, vec![2; 10]);
    pair.run();
    assert!(!pair.client.outcomes.contains_key(&waiting));
    let receive = pair.server.receive(pair.far, 4);
    pair.run();
    assert_eq!(pair.server.take(receive).0, Ok(4));
    assert_eq!(pair.client.take(waiting).0, Ok(4), "there was room for four");
}

#[test]
fn bytes_take_time_to_arrive() {
    let mut pair = Pair::whole(1);
    let before = pair.world.now();
    let receive = pair.server.receive(pair.far, 100);
    pair.client.send(pair.near, vec![1; 10]);
    pair.run();
    assert_eq!(pair.server.take(receive).0, Ok(10));
    assert!(pair.world.now().since(before).as_micros() >= 10);
}

#[test]
fn connecting_to_a_closed_port_is_refused() {
    let pair = Pair::whole(1);
    let refused = Err(Errno(libc::ECONNREFUSED));
    assert_eq!(pair.world.connect(pair.client.host, pair.server_host, 1), refused);
    assert_eq!(pair.world.connect(pair.server_host, pair.client.host, PORT), refused);
    pair.world.kill(pair.server_host);
    assert_eq!(pair.world.connect(pair.client.host, pair.server_host, PORT), refused);
    pair.world.listen(pair.server_host, PORT);
    for _ in 0..NetworkConfig::default().backlog_max {
        pair.world.connect(pair.client.host, pair.server_host, PORT).unwrap();
    }
    assert_eq!(pair.world.connect(pair.client.host, pair.server_host, PORT), refused, "the backlog is full");
}

#[test]
fn closing_a_port_cancels_its_accepts_and_resets_waiting_connections() {
    let mut pair = Pair::whole(1);
    let listener = pair.world.listen(pair.server_host, 2);
    let waiting = pair.world.connect(pair.client.host, pair.server_host, 2).unwrap();
    let idle = pair.world.listen(pair.server_host, 3);
    let accept = pair.server.accept(idle);
    pair.run();
    pair.world.stop_listening(listener);
    pair.world.stop_listening(idle);
    let receive = pair.client.receive(waiting, 10);
    pair.run();
    assert_eq!(pair.server.take(accept).0, Err(Errno::CANCELLED));
    assert_eq!(pair.client.take(receive).0, Err(Errno::CONNECTION_RESET));
}

#[test]
fn each_connection_is_accepted_once_and_may_be_used_on_another_processor() {
    let mut pair = Pair::whole(3);
    let mut second = Side::new(&pair.world, pair.server_host, 1);
    let listener = pair.world.listen(pair.server_host, 2);
    let accepts = [pair.server.accept(listener), second.accept(listener)];
    let nears = [(); 2].map(|()| pair.world.connect(pair.client.host, pair.server_host, 2).unwrap());
    run(&pair.world, &mut [&mut pair.server, &mut second, &mut pair.client]);
    let accepted = [pair.server.take(accepts[0]).0.unwrap(), second.take(accepts[1]).0.unwrap()];
    assert_ne!(accepted[0], accepted[1]);
    for near in nears {
        pair.client.send(near, vec![near.0 as u8; 3]);
    }
    let swapped =
        [second.receive(Connection(accepted[0] as u32), 8), pair.server.receive(Connection(accepted[1] as u32), 8)];
    run(&pair.world, &mut [&mut pair.server, &mut second, &mut pair.client]);
    assert_eq!((second.take(swapped[0]).0, pair.server.take(swapped[1]).0), (Ok(3), Ok(3)));
}

#[test]
fn after_a_close_the_peer_receives_the_rest_and_then_the_end() {
    let mut pair = Pair::whole(1);
    let send = pair.server.send(pair.far, vec![5; 100]);
    pair.run();
    assert_eq!(pair.server.take(send).0, Ok(100));
    pair.server.machine.close(pair.far);
    assert_eq!(pair.received().0, Ok(100));
    assert_eq!(pair.received().0, Ok(0));
    assert_eq!(pair.received().0, Ok(0));
    assert_eq!(pair.sent_back(vec![1]), Ok(1), "the sender cannot know yet");
    assert_eq!(pair.sent_back(vec![1]), Err(Errno::CONNECTION_RESET));
}

#[test]
fn closing_with_unreceived_data_resets_the_peer() {
    let mut pair = Pair::whole(1);
    assert_eq!(pair.sent_back(vec![1; 10]), Ok(10));
    pair.server.machine.close(pair.far);
    assert_eq!(pair.received().0, Err(Errno::CONNECTION_RESET));
}

#[test]
fn a_shutdown_ends_operations_in_flight_on_both_sides() {
    let mut pair = Pair::whole(1);
    let own = pair.server.receive(pair.far, 10);
    let full = pair.server.send(pair.far, vec![1; 300_000]);
    let blocked = pair.server.send(pair.far, vec![1; 10]);
    pair.run();
    pair.server.machine.shutdown(pair.far);
    pair.run();
    assert_eq!(pair.server.take(full).0, Ok(256 * 1024));
    assert_eq!(pair.server.take(own).0, Ok(0));
    assert_eq!(pair.server.take(blocked).0, Err(Errno(libc::EPIPE)));
    let mut left = 256 * 1024;
    while left > 0 {
        left -= pair.received().0.unwrap();
    }
    assert_eq!(pair.received().0, Ok(0));
    pair.server.machine.close(pair.far);
}

#[test]
#[should_panic(expected = "1 operations in flight")]
fn a_connection_in_use_must_not_be_closed() {
    let mut pair = Pair::whole(1);
    pair.server.receive(pair.far, 10);
    pair.run();
    pair.server.machine.close(pair.far);
}

#[test]
#[should_panic(expected = "used after it was closed")]
fn a_closed_connection_must_not_be_used() {
    let mut pair = Pair::whole(1);
    pair.server.machine.close(pair.far);
    pair.server.machine.shutdown(pair.far);
}

#[test]
fn a_power_cut_resets_the_peer_and_loses_bytes_in_flight() {
    let mut pair = Pair::whole(1);
    let waiting = pair.client.receive(pair.near, 10);
    pair.server.send(pair.far, vec![5; 100]);
    pair.server.run_slice();
    pair.world.power_cut(pair.server_host);
    pair.run();
    assert_eq!(pair.client.take(waiting).0, Err(Errno::CONNECTION_RESET));
    assert_eq!(pair.sent_back(vec![1]), Err(Errno::CONNECTION_RESET));
}

#[test]
fn an_end_in_flight_at_a_power_cut_does_not_arrive() {
    for seed in 0..50 {
        let mut pair = Pair::whole(seed);
        let waiting = pair.client.receive(pair.near, 10);
        pair.client.run_slice();
        pair.server.send(pair.far, vec![5; 100]);
        pair.server.machine.shutdown(pair.far);
        pair.world.power_cut(pair.server_host);
        pair.run();
        let outcome = pair.client.take(waiting).0;
        assert_eq!(outcome, Err(Errno::CONNECTION_RESET), "seed {seed}: a cut stream looks complete");
    }
}

#[test]
fn what_arrived_before_a_power_cut_can_still_be_received() {
    let mut pair = Pair::whole(1);
    pair.server.send(pair.far, vec![5; 100]);
    pair.server.machine.shutdown(pair.far);
    pair.run();
    pair.world.power_cut(pair.server_host);
    assert_eq!(pair.received().0, Ok(100));
    assert!(pair.received().0.is_err());
}

#[test]
fn after_a_kill_the_peer_receives_what_was_sent_and_then_the_end() {
    let mut pair = Pair::whole(1);
    pair.server.send(pair.far, vec![5; 100]);
    pair.server.run_slice();
    pair.world.kill(pair.server_host);
    assert_eq!(pair.received().0, Ok(100));
    assert_eq!(pair.received().0, Ok(0));
}

#[test]
fn a_reset_from_outside_ends_both_sides() {
    let mut pair = Pair::whole(1);
    let (near, far) = (pair.client.receive(pair.near, 10), pair.server.receive(pair.far, 10));
    pair.run();
    pair.world.reset_connection(pair.near);
    pair.run();
    assert_eq!(pair.client.take(near).0, Err(Errno::CONNECTION_RESET));
    assert_eq!(pair.server.take(far).0, Err(Errno::CONNECTION_RESET));
    pair.server.machine.close(pair.far);
}
