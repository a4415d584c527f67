package debian

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/simworld/kernel"
)

// servedPorts are where the usual servers listen as soon as their packages are installed, by unit.
var servedPorts = map[string][]uint16{ //nolint:gochecknoglobals // a table
	"nginx.service": {80}, "caddy.service": {80}, "haproxy.service": {80}, "squid.service": {3128}, "grafana.service": {3000},
	"prometheus.service": {9090}, "prometheus-node-exporter.service": {9100}, "cockpit.service": {9090}, "postgresql.service": {5432}, "mariadb-server.service": {3306},
	"redis-server.service": {6379}, "memcached.service": {11211}, "rabbitmq-server.service": {5672}, "postfix.service": {25}, "exim4.service": {25}, "dnsmasq.service": {53}, "unbound.service": {53},
}

// serve lets a unit listen as long as its program runs. What looks like HTTP gets an answer that says so; any other
// connection stays open.
func (m systemd) serve(name string, of *kernel.Process) {
	for _, port := range servedPorts[name] {
		ln, err := m.Listen(port)
		if err != nil {
			continue // another unit has it
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
}

// answer is one connection to a unit.
func (m systemd) answer(name string, conn net.Conn, of *kernel.Process) {
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
