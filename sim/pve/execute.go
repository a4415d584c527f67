package pve

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/node"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// apiExecute is POST /nodes/{node}/execute: several calls on the node, each with its
// own answer (PVE/API2/Nodes.pm).
func apiExecute(t *core.Table, w *core.World, c *core.Call) (any, error) {
	commands, err := readCommands(c.In["commands"])
	if err != nil {
		return nil, perl.BadParam("commands", "invalid format - "+err.Error()+"\n")
	}
	list := []map[string]any{}
	for _, command := range commands {
		list = append(list, executed(t, w, c, command))
	}
	return list, nil
}

// executed is the answer of one of them.
func executed(t *core.Table, w *core.World, c *core.Call, command batchCommand) map[string]any {
	data, err := runCommand(t, w, c, command)
	if err == nil {
		return map[string]any{"status": 200, "data": data}
	}
	failed := errorAnswer(err)
	entry := map[string]any{"status": failed.status, "message": fmt.Sprint(failed.content["message"])}
	if wrong, ok := failed.content["errors"]; ok {
		entry["errors"] = wrong
	}
	return entry
}

func runCommand(t *core.Table, w *core.World, c *core.Call, command batchCommand) (any, error) {
	path := "/nodes/" + c.In["node"] + "/" + strings.Trim(command.Path, "/")
	m, vars, h, _ := t.Find(command.Method, path)
	if m == nil || h == nil || m.Path == c.M.Path {
		return nil, perl.Fail("no handler for '%s'", strings.TrimPrefix(path, "/"))
	}
	one := &core.Call{W: w, Who: c.Who, M: m, Req: &core.Request{HTTP: c.Req.HTTP, Method: command.Method, Format: "json", Path: path, Params: command.Args, Begun: c.Req.Begun}}
	if err := one.Gather(vars); err != nil {
		return nil, err
	}
	if err := one.Permitted(); err != nil {
		return nil, err
	}
	if wrong := m.CheckFor(w.Cfg.Version, one.Values); wrong != nil {
		return nil, &perl.APIError{Status: 400, Errors: wrong}
	}
	data, err := run(h, w, one)
	if list, ok := data.(core.Paged); ok {
		data = list.Data
	}
	if list, ok := data.(core.Beside); ok {
		data = list.Data
	}
	if console, ok := data.(node.Socket); ok {
		data = console.Data
	}
	return data, err
}

// batchCommand is one of the calls of POST /nodes/{node}/execute.
type batchCommand struct {
	Path, Method string
	Args         map[string]any
}

// readCommands reads such calls as verify_command_batch in PVE/API2/Nodes.pm does.
func readCommands(text string) ([]batchCommand, error) {
	var raw []map[string]any
	if err := json.Unmarshal([]byte(text), &raw); err != nil {
		return nil, errors.New("not a valid JSON array of commands")
	}
	var list []batchCommand
	for i, command := range raw {
		path, _ := command["path"].(string)
		verb, _ := command["method"].(string)
		args, isObject := command["args"].(map[string]any)
		switch _, given := command["args"]; {
		case path == "":
			return nil, fmt.Errorf("[%d].path: property is missing and it is not optional", i)
		case !slices.Contains([]string{"GET", "POST", "PUT", "DELETE"}, verb):
			return nil, fmt.Errorf("[%d].method: value '%s' does not have a value in the enumeration 'GET, POST, PUT, DELETE'", i, verb)
		case given && !isObject:
			return nil, fmt.Errorf("[%d].args: type check ('object') failed", i)
		}
		if args == nil {
			args = map[string]any{}
		}
		list = append(list, batchCommand{path, verb, args})
	}
	return list, nil
}
