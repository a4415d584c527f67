package debian

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/homestak/homestak-gitops/sim/machine"
)

// portOf is the port on which the usual server of a unit listens once its package is installed; 0 for none.
func portOf(unit string) uint16 {
	switch strings.TrimSuffix(unit, ".service") {
	case "nginx", "caddy", "haproxy":
		return 80
	case "squid":
		return 3128
	case "grafana":
		return 3000
	case "prometheus", "cockpit":
		return 9090
	case "prometheus-node-exporter":
		return 9100
	case "postgresql":
		return 5432
	case "mariadb-server":
		return 3306
	case "redis-server":
		return 6379
	case "memcached":
		return 11211
	case "rabbitmq-server":
		return 5672
	case "postfix", "exim4":
		return 25
	case "dnsmasq", "unbound":
		return 53
	default:
		return 0
	}
}

// serve lets a unit listen as long as its program runs. HTTP requests get a response that says so; any other
// connection stays open.
func (m systemd) serve(name string, of *machine.Process) {
	port := portOf(name)
	if port == 0 {
		return
	}
	ln, err := m.Listen(port)
	if err != nil {
		return // another unit has it
	}
	m.busy.Go(func() {
		select {
		case <-of.Done():
		case <-m.Down():
		}
		_ = ln.Close()
	})
	m.busy.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			m.busy.Go(func() { m.answer(name, conn, of) })
		}
	})
}

// answer is one connection to a unit.
func (m systemd) answer(name string, conn net.Conn, of *machine.Process) {
	ended := make(chan struct{})
	m.busy.Go(func() {
		select {
		case <-of.Done():
		case <-m.Down():
		case <-ended:
		}
		_ = conn.Close()
	})
	defer close(ended)
	r := bufio.NewReader(conn)
	for {
		q, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		text := "simulated " + name + "\n"
		answer := http.Response{StatusCode: http.StatusOK, ProtoMajor: 1, ProtoMinor: 1, Request: q, ContentLength: int64(len(text)), Body: io.NopCloser(strings.NewReader(text))}
		if answer.Write(conn) != nil {
			return
		}
	}
}
