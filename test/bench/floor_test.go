package bench_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
)

// concurrency is how many requests are in flight at once, ours and of the floor.
const concurrency = 10

// floor does the reads of a full check and nothing else: the list of guests, then
// the configuration of each, over connections that are kept. Nobody who looks at
// every guest over this API can do less.
func floor(ctx context.Context, host access) error {
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig:     &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // A floor has no duties.
		MaxConnsPerHost:     concurrency,
		MaxIdleConnsPerHost: concurrency,
		DisableCompression:  true,
	}}
	defer client.CloseIdleConnections()
	get := func(path string, into any) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, host.API+"/api2/json"+path, nil)
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "PVEAPIToken="+host.Token)
		res, err := client.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("GET %s: %s", path, res.Status)
		}
		return json.NewDecoder(res.Body).Decode(into)
	}
	type guest struct {
		VMID int    `json:"vmid"`
		Node string `json:"node"`
		Name string `json:"name"`
	}
	var list struct{ Data []guest }
	if err := get("/cluster/resources?type=vm", &list); err != nil {
		return err
	}
	work := make(chan guest, len(list.Data))
	for _, g := range list.Data {
		work <- g
	}
	close(work)
	errs := make([]error, concurrency)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			for g := range work {
				var config struct{ Data map[string]any }
				if errs[i] = get(fmt.Sprintf("/nodes/%s/qemu/%d/config", g.Node, g.VMID), &config); errs[i] != nil {
					return
				}
				if config.Data["name"] == nil {
					errs[i] = fmt.Errorf("guest %d has no name", g.VMID)
					return
				}
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
