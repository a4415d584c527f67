package pvesim

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

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
