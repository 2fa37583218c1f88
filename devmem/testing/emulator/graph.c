/* Graphs, whose nodes are calls in the order in which they were captured; what they are instantiated to; and objects of the
 * program that they keep alive. A launch makes the calls again: what they name has to be there then.
 *
 * Called with the core's lock. It is released while the program destroys its object.
 */
#include "core.h"

#include <stdlib.h>

struct user_object {
    uint64_t handle;
    void *data;
    void (*destroy)(void *);
    size_t references;
};

struct held_object {
    struct user_object *object;
    unsigned count;
};

struct graph {
    uint64_t handle;
    struct held_object *objects;
    size_t count;
    struct node *nodes;
    size_t node_count, node_room;
};

/* --- objects of the program --------------------------------------------------------------------------------------- */

static void object_release(struct user_object *object, unsigned count)
{
    object->references -= count;
    if (object->references) return;
    handle_free(object->handle);
    live_handles--;
    bool outer = inside_host_function;
    inside_host_function = true; /* it may not call the driver */
    pthread_mutex_unlock(&core_mutex);
    object->destroy(object->data);
    pthread_mutex_lock(&core_mutex);
    inside_host_function = outer;
    free(object);
}

status user_object_create(void *data, void (*destroy)(void *), unsigned references, uint64_t *handle)
{
    if (!destroy || !references) return INVALID_VALUE;
    struct user_object *object = malloc(sizeof *object);
    if (!object) abort();
    *object = (struct user_object){handle_new(HANDLE_USER_OBJECT, object), data, destroy, references};
    *handle = object->handle;
    live_handles++;
    return OK;
}

status user_object_change(uint64_t handle, unsigned count, bool release)
{
    struct user_object *object = handle_get(handle, HANDLE_USER_OBJECT);
    if (!object || !count || (release && count > object->references)) return INVALID_VALUE;
    if (release) object_release(object, count);
    else object->references += count;
    return OK;
}

static void graph_hold(struct graph *graph, struct user_object *object, unsigned count)
{
    graph->objects = realloc(graph->objects, (graph->count + 1) * sizeof *graph->objects);
    if (!graph->objects) abort();
    graph->objects[graph->count++] = (struct held_object){object, count};
}

/* `move`: the references are the caller's, who gives them up. */
status graph_retain_object(uint64_t handle, uint64_t which, unsigned count, bool move)
{
    struct graph *graph = handle_get(handle, HANDLE_GRAPH);
    struct user_object *object = handle_get(which, HANDLE_USER_OBJECT);
    if (!graph || !object || !count || (move && count > object->references)) return INVALID_VALUE;
    if (!move) object->references += count;
    graph_hold(graph, object, count);
    return OK;
}

/* --- graphs ------------------------------------------------------------------------------------------------------- */

struct graph *graph_open(enum handle_kind kind)
{
    struct graph *graph = calloc(1, sizeof *graph);
    if (!graph) abort();
    graph->handle = handle_new(kind, graph);
    live_handles++;
    return graph;
}

struct graph *graph_find(uint64_t handle) { return handle_get(handle, HANDLE_GRAPH); }
uint64_t graph_handle(const struct graph *graph) { return graph ? graph->handle : 0; }

void graph_close(struct graph *graph)
{
    handle_free(graph->handle);
    live_handles--;
    for (size_t index = 0; index < graph->count; index++) object_release(graph->objects[index].object, graph->objects[index].count);
    free(graph->objects);
    free(graph->nodes);
    free(graph);
}

status graph_destroy(uint64_t handle, enum handle_kind kind)
{
    struct graph *graph = handle_get(handle, kind);
    if (!graph) return INVALID_VALUE;
    graph_close(graph);
    return OK;
}

void graph_add(struct graph *graph, struct node node)
{
    if (graph->node_count == graph->node_room) {
        graph->node_room = graph->node_room ? 2 * graph->node_room : 16;
        graph->nodes = realloc(graph->nodes, graph->node_room * sizeof *graph->nodes);
        if (!graph->nodes) abort();
    }
    graph->nodes[graph->node_count++] = node;
}

status graph_nodes(uint64_t handle, size_t *count)
{
    struct graph *graph = handle_get(handle, HANDLE_GRAPH);
    if (!count || !graph) return INVALID_VALUE;
    *count = graph->node_count;
    return OK;
}

/* What is instantiated keeps the objects of the graph alive too. */
status graph_instantiate(uint64_t handle, uint64_t *exec)
{
    struct graph *graph = handle_get(handle, HANDLE_GRAPH);
    if (!graph || !exec) return INVALID_VALUE;
    struct graph *made = graph_open(HANDLE_GRAPH_EXEC);
    for (size_t index = 0; index < graph->node_count; index++) graph_add(made, graph->nodes[index]);
    for (size_t index = 0; index < graph->count; index++) {
        graph->objects[index].object->references++;
        graph_hold(made, graph->objects[index].object, 1);
    }
    *exec = made->handle;
    return OK;
}

static status node_run(struct context *context, uint64_t stream, const struct node *node)
{
    if (node->kind == NODE_COPY) return copy_run(context, stream, &node->copy, false);
    if (node->kind == NODE_HOST) return stream_call_host(context, stream, node->host.call, node->host.data);
    return fill_run(context, stream, node->fill.address, node->fill.pitch, node->fill.value, node->fill.unit, node->fill.width,
                    node->fill.height, false);
}

/* The nodes in the order of the stream. */
status graph_launch(struct context *context, uint64_t exec, uint64_t stream)
{
    struct stream *on;
    struct graph *graph = handle_get(exec, HANDLE_GRAPH_EXEC);
    if (!graph) return INVALID_VALUE;
    status found = stream_for_work(context, stream, &on);
    if (found == OK) stream_mark(on);
    for (size_t index = 0; found == OK && index < graph->node_count; index++)
        found = node_run(context, stream, &graph->nodes[index]);
    return found;
}
